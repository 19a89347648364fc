"""Run the arms of a case in turn: in paused and resumed processes, or fresh ones per block."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.trials.process_tree import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SRC = Path(__file__).parents[1] / "src"
BLOCK_LIMIT_S = 120.0


def _path() -> str:
    """Return PYTHONPATH with our source in front."""
    return os.pathsep.join(filter(None, [str(SRC), os.environ.get("PYTHONPATH")]))


class Failed(Exception):
    """A process ended or hung, or a lever was left out; the message is its last output."""


@dataclass(frozen=True, kw_only=True)
class TrialProcess:
    """One way to run a script: its name in the tables and its command."""

    name: str
    command: tuple[str, ...]


class Living:
    """A process that answers commands, in its own process group.

    Between its blocks the whole group is stopped, so that none of its workers prefetches, warms
    up or spins while another process is measured.
    """

    def __init__(self, arm: TrialProcess, folder: Path) -> None:
        self._arm = arm
        self._said = folder / f"{arm.name.replace('/', '-')}-{random.random()}.err"
        with self._said.open("w") as errors:
            self._process = subprocess.Popen(
                arm.command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": _path()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  it may be stopped when we are killed
            )

    def ask(self, word: str) -> dict[str, Any]:
        """Resume the process, and return its answer to `word`."""
        assert self._process.stdin is not None  # noqa: S101  it is a pipe
        self._signal(signal.SIGCONT)
        watchdog = threading.Timer(BLOCK_LIMIT_S, self._signal, (signal.SIGKILL,))
        watchdog.start()
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
            answer = self._answer()
        except BrokenPipeError:
            raise Failed(self._last_words()) from None
        finally:
            watchdog.cancel()
        self._signal(signal.SIGSTOP)
        if "hasten: left out" in self._said.read_text(errors="replace"):
            raise Failed(self._last_words())
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101  it is a pipe
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise Failed(self._last_words())

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        lines = self._said.read_text(errors="replace").strip().splitlines()
        return lines[-1][:160] if lines else f"exit code {self._process.poll()}"

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Let the process end; if it does not, kill it and everything it started."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError, ValueError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=20)
        self._signal(signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def living(arm: TrialProcess, folder: Path) -> Iterator[Living]:
    """Start a process, and end it on exit."""
    process = Living(arm, folder)
    try:
        yield process
    finally:
        process.end()


class Race:
    """The blocks of several arms, in random order within each round.

    Args:
        folder: the working folder of the processes.
        stays: processes stay alive from round to round, and their first block is not counted.
    """

    def __init__(self, folder: Path, *, stays: bool) -> None:
        self._folder = folder
        self._stays = stays
        self._alive: dict[str, Living] = {}
        self._leases = contextlib.ExitStack()
        self.walls_s: dict[str, list[float | None]] = {}
        self.failures: dict[str, str] = {}

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *error: object) -> None:
        self._leases.close()

    def round(self, arms: Sequence[TrialProcess]) -> dict[str, float]:
        """Run one block of each arm; those that failed before are left out."""
        walls = {}
        for arm in random.sample(arms, len(arms)):
            if arm.name in self.failures:
                continue
            try:
                walls[arm.name] = self._block(arm)
            except Failed as failure:
                self.failures[arm.name] = str(failure)
        for arm in arms:
            self.walls_s.setdefault(arm.name, []).append(walls.get(arm.name))
        return walls

    def _block(self, arm: TrialProcess) -> float:
        if not self._stays:
            with living(arm, self._folder) as process:
                return float(process.ask("time")["wall_s"])
        if arm.name not in self._alive:
            self._alive[arm.name] = self._leases.enter_context(living(arm, self._folder))
            self._alive[arm.name].ask("time")
        return float(self._alive[arm.name].ask("time")["wall_s"])

    def hashes(self, arm: TrialProcess) -> dict[str, Any]:
        """Return the hashes of an arm, from its living process if it has one."""
        if arm.name in self._alive:
            return self._alive[arm.name].ask("hash")
        return hashes(arm, self._folder)

    def logs(self, baseline: TrialProcess, candidate: TrialProcess) -> list[float]:
        """Return the log of baseline over candidate for each round that has both."""
        pairs = zip(
            self.walls_s.get(baseline.name, []), self.walls_s.get(candidate.name, []), strict=False
        )
        return [log(one / other) for one, other in pairs if one and other]


def hashes(arm: TrialProcess, folder: Path) -> dict[str, Any]:
    """Return the hashes of an arm, from a separate process."""
    with living(arm, folder) as process:
        return process.ask("hash")


def differ(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    """Say where the hashes of two arms first differ; "" if all are equal.

    >>> one = {"batches": ["a", "b"], "states": ["c", "d"], "weights": "e"}
    >>> differ(one, {**one, "batches": ["a", "x"], "weights": "x"})
    'batches of epoch 2'
    """
    for what in ("batches", "states"):
        for epoch, (one, other) in enumerate(zip(baseline[what], candidate[what], strict=True), 1):
            if one != other:
                words = {"batches": "batches of", "states": "random state after"}[what]
                return f"{words} epoch {epoch}"
    return "" if baseline["weights"] == candidate["weights"] else "weights"
