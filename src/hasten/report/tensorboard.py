"""The examined steps and the tuning as scalars for TensorBoard.

Only its record writer and its messages are used: they import neither torch nor TensorFlow.
"""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from hasten.errors import UsageError
from hasten.report.files import REMEDY
from hasten.report.live_screen import race_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hasten.records import Comparison, Step, Tuning

VERSION = "brain.Event:2"


class Scalar(NamedTuple):
    """One point of a curve."""

    tag: str
    number: int
    value: float


def write_scalars(folder: Path, tuning: Tuning) -> Path:
    """Write an event file into a folder, which is made, and return where.

    Raises:
        UsageError: tensorboard is not installed, or the folder cannot be written.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise UsageError(
            "tensorboard is not installed here.", remedy="Run: pip install tensorboard"
        ) from error
    now_s = time.time()
    # TensorBoard knows a file of events by its name, and orders them by the time in it.
    path = folder / f"events.out.tfevents.{now_s:.6f}.hasten"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            _write(stream, tuning, now_s, record=RecordWriter, event=Event)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"Cannot write {path}: {reason}.", remedy=REMEDY) from error
    return path


def _write(stream: IO[bytes], tuning: Tuning, now_s: float, *, record: Any, event: Any) -> None:
    writer = record(stream)
    writer.write(event(wall_time=now_s, file_version=VERSION).SerializeToString())
    for tag, number, value in scalars(tuning):
        summary = {"value": [{"tag": tag, "simple_value": value}]}
        writer.write(event(wall_time=now_s, step=number, summary=summary).SerializeToString())


def scalars(tuning: Tuning) -> Iterator[Scalar]:
    """Yield every point: steps by their number, races by the number of the pair."""
    yield from _steps(tuning.diagnosis.steps if tuning.diagnosis else ())
    for number, seen in enumerate(tuning.races, 1):
        yield from _race(f"race/{number:02d} {race_name(seen.baseline, seen.candidate)}", seen)
    if tuning.confirmed is not None:
        yield from _race("confirmation/speed-up of a pair", tuning.confirmed)
    yield from _result(tuning)


def _steps(steps: Sequence[Step]) -> Iterator[Scalar]:
    for index, step in enumerate(steps):
        yield Scalar("step/seconds", index, step.wall_s)
        if step.wall_s:
            yield Scalar("step/samples_per_s", index, step.sample_count / step.wall_s)
        for phase, length_ns in step.phase_ns.items():
            yield Scalar(f"phase/{phase}_s", index, length_ns * 1e-9)


def _race(tag: str, seen: Comparison) -> Iterator[Scalar]:
    for index, pair in enumerate(seen.pairs):
        yield Scalar(tag, index, pair.baseline_s / pair.candidate_s)


def _result(tuning: Tuning) -> Iterator[Scalar]:
    for name, profile in (("before", tuning.baseline), ("after", tuning.tuned)):
        if profile is not None:
            yield Scalar(f"tuning/{name}_samples_per_s", 0, profile.samples_per_s)
    if tuning.speedup is not None:
        for end in ("low", "mid", "high"):
            yield Scalar(f"tuning/speedup_{end}", 0, getattr(tuning.speedup, f"{end}_ratio"))
