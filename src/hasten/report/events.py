"""The stream of `--log-jsonl`: one JSON object per line, flushed, for programs that watch.

docs/events.md lists the events and their keys. A key is never renamed or removed without a new
schema number. If the reader goes away, the stream ends and nothing else does.
"""

from __future__ import annotations

import os
import time
from typing import IO, TYPE_CHECKING, Any

from hasten.errors import HastenError, reason_of
from hasten.report import document
from hasten.report.files import descriptor, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from hasten.records import Comparison, Diagnosis, Interval, Pair, Plan, Profile, Workload

SCHEMA = 1
ALWAYS = ("event", "elapsed_s")
KEYS = {
    "start": ("schema", "version", "command", "workload"),
    "stage": ("name", "detail"),
    "profile": ("step_s", "samples_per_s", "phases"),
    "finding": ("id", "share", "where", "why", "remedy", "lever"),
    "race_begins": ("race", "stage", "baseline", "candidate"),
    "pair": ("race", "pair", "baseline_s", "candidate_s", "baseline_first", "pressure"),
    "evidence": ("race", "pairs", "speedup"),
    "race_ends": ("race", "verdict", "pairs", "speedup", "wall_s", "failure"),
    "incumbent": ("plan",),
    "note": ("text",),
    "result": ("document", "files"),
    "error": ("problem", "remedy", "exit_code"),
}
STDOUT = "-"
_INTERRUPTED = 130


class Events:
    """A watcher that writes each event to a stream, or nothing if there is no stream.

    Attributes:
        lost: why the stream ended early; empty if it did not, or if its reader left.
    """

    def __init__(
        self, stream: IO[bytes] | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.lost = ""
        self._stream = stream
        self._clock = clock
        self._start_s = clock()
        self._stage = ""
        self._race_index = 0
        self._pair_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, HastenError):
            self._tell("error", error.problem, error.remedy, error.exit_code)
        elif isinstance(error, KeyboardInterrupt):
            self._tell("error", "Interrupted.", "", _INTERRUPTED)
        elif isinstance(error, Exception):
            self._tell("error", f"{type(error).__name__}: {error}", "", 1)
        self._close()

    def start(self, command: str, workload: Workload, *, version: str) -> None:
        """Begin the stream with the command and the workload."""
        argv = {"entry": workload.entry.value, "argv": list(workload.argv), "cwd": workload.cwd}
        self._tell("start", SCHEMA, version, command, argv)

    def stage(self, name: str, detail: str = "") -> None:
        """Report that a stage of the work begins."""
        self._stage = name
        self._tell("stage", name, detail)

    def profiled(self, profile: Profile) -> None:
        """Report where the time of a step goes."""
        self._tell("profile", *document.baseline(profile).values())

    def found(self, diagnosis: Diagnosis) -> None:
        """Report each finding."""
        for finding in document.findings(diagnosis):
            self._tell("finding", *finding.values())

    def race_begins(self, baseline: Plan, candidate: Plan) -> None:
        """Report that a race begins; the plans omit levers that were set by hand."""
        self._race_index += 1
        self._pair_count = 0
        plans = (dict(plan.settings) for plan in (baseline, candidate))
        self._tell("race_begins", self._race_index, self._stage, *plans)

    def race_grows(self, pairs: Sequence[Pair], speedup: Interval) -> None:
        """Report new pairs, and what all pairs so far show."""
        for pair in pairs:
            self._pair_count += 1
            self._tell(
                "pair", self._race_index, self._pair_count, pair.baseline_s, pair.candidate_s,
                pair.baseline_first, pair.pressure_ratio,
            )  # fmt: skip
        shown = document.interval(speedup)
        self._tell("evidence", self._race_index, self._pair_count, shown)

    def race_ends(self, seen: Comparison) -> None:
        """Report the result of a race."""
        self._tell(
            "race_ends", self._race_index, seen.verdict.value, len(seen.pairs),
            document.interval(seen.speedup), seen.wall_s, seen.failure,
        )  # fmt: skip

    def leads(self, plan: Plan) -> None:
        """Report the best plan so far."""
        self._tell("incumbent", dict(plan.settings))

    def note(self, text: str) -> None:
        """Report a fact or a message."""
        self._tell("note", text)

    known = note

    def result(self, found: Mapping[str, Any], files: Sequence[Path] = ()) -> None:
        """Report the result, as `--json` writes it, and the files that were written."""
        self._tell("result", found, [str(path) for path in files])

    def _tell(self, event: str, *values: Any) -> None:
        if self._stream is None:
            return
        known = dict(zip(KEYS[event], values, strict=True))
        line = {"event": event, "elapsed_s": round(self._clock() - self._start_s, 3)} | known
        try:
            self._stream.write(document.encoded(line) + b"\n")
            self._stream.flush()
        except BrokenPipeError:
            self._close()
        except OSError as error:
            self.lost = reason_of(error)
            self._close()

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.close()
            except OSError:  # whatever could not be written before cannot be written now
                return


def open_stream(path: Path | None) -> IO[bytes] | None:
    """Open the event stream: a file (truncated), a pipe, an open file, or stdout for `-`.

    Raises:
        UsageError: it cannot be written.
    """
    if path is None:
        return None
    try:
        # There is no `sys.stdout` where a shell has closed it.
        number = 1 if str(path) == STDOUT else descriptor(path)
        if number is None:
            return path.open("wb")
        # A duplicate: if its reader leaves, Python's own stdout stays intact and silent.
        return os.fdopen(os.dup(number), "wb")
    except OSError as error:
        raise refusal(path, error) from error
