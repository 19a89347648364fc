"""The examined steps as a Chrome trace: Perfetto and chrome://tracing open it.

The ledger keeps how long each phase of a step took, not how often the step went back and forth
between them. So a phase is drawn once a step, in the usual order of phases, and the trace says
so; the lengths are measured.
Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.errors import UsageError
from hasten.records import Phase
from hasten.report import document
from hasten.report.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hasten.records import Diagnosis, Step, Workload

PROCESS, TRACK, COUNTS = 1, 1, 2
NOTE = (
    "Phases are drawn once a step, in their usual order. Their lengths are sums over the step; "
    "the script may go back and forth between them."
)
# What passes between two steps comes before the step that it delays.
ORDER = sorted(Phase, key=lambda phase: phase.in_step)


def write_trace(path: Path, diagnosis: Diagnosis | None, workload: Workload) -> None:
    """Write the trace of the examined steps, atomically.

    Raises:
        UsageError: no step was examined, or the file cannot be written.
    """
    if diagnosis is None or not diagnosis.steps:
        raise UsageError(
            "There are no steps to trace: the script was not examined.",
            remedy="Run `hasten profile --trace PATH` with your script.",
        )
    content = {
        "displayTimeUnit": "ms",
        "otherData": {
            "workload": list(workload.argv),
            "note": NOTE,
            "findings": document.findings(diagnosis),
        },
        "traceEvents": [*_names(workload), *events(diagnosis.steps)],
    }
    write_atomically(path, document.encoded(content).decode() + "\n")


def events(steps: tuple[Step, ...]) -> Iterator[dict[str, Any]]:
    """Yield the events of steps that follow one another, times in microseconds.

    Each step is a slice with its phases beneath it, an instant at its start, and a count of
    samples per second.
    """
    now_ns = 0
    for index, step in enumerate(steps):
        lengths = [(phase, step.phase_ns.get(phase, 0)) for phase in ORDER]
        yield from _step(index, step, now_ns + sum(ns for p, ns in lengths if not p.in_step))
        for phase, length_ns in lengths:
            if length_ns:
                args = {"step": index, "samples": step.sample_count}
                yield _slice(str(phase), "phase", now_ns, length_ns, args)
            now_ns += length_ns


def _step(index: int, step: Step, start_ns: int) -> Iterator[dict[str, Any]]:
    length_ns = sum(ns for phase, ns in step.phase_ns.items() if Phase(phase).in_step)
    rate = step.sample_count / step.wall_s if length_ns else 0.0
    args = {"step": index, "samples": step.sample_count, "samples_per_s": rate}
    yield _event("i", "step begins", start_ns, cat="step", s="t", args={"step": index})
    yield _slice(f"step {index}", "step", start_ns, length_ns, args)
    yield _event("C", "samples per second", start_ns, tid=COUNTS, args={"rate": rate})


def _slice(
    name: str, category: str, start_ns: int, length_ns: int, args: dict[str, Any]
) -> dict[str, Any]:
    return _event("X", name, start_ns, cat=category, dur=length_ns / 1e3, args=args)


def _event(kind: str, name: str, start_ns: int, **rest: Any) -> dict[str, Any]:
    return {"ph": kind, "name": name, "ts": start_ns / 1e3, "pid": PROCESS, "tid": TRACK} | rest


def _names(workload: Workload) -> Iterator[dict[str, Any]]:
    for kind, name in (("process_name", " ".join(workload.argv)), ("thread_name", "training loop")):
        yield {"ph": "M", "name": kind, "pid": PROCESS, "tid": TRACK, "args": {"name": name}}
