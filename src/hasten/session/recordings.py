"""The runs of a proof: launched two at a time, and the first teaches the others."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from hasten.errors import TRIAL_FAILURES, NoRoom, Unprovable
from hasten.records import Plan
from hasten.trials.deadline import NEVER
from hasten.trials.isolation.scratch import make_folder
from hasten.trials.recording import Running, recorded
from hasten.verify.proof_runs import recorded_count
from hasten.verify.prover import Prover
from hasten.verify.recorded_run import RecordedRun, read_evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hasten.protocol import RecordingSpec
    from hasten.records import Workload
    from hasten.trials.compiled_code import CompiledCode
    from hasten.trials.deadline import Deadline
    from hasten.trials.process import Isolation


class Recordings:
    """Record runs of a script for a `Prover`.

    Nothing is timed here, so two runs go on at the same time where memory holds them.

    Args:
        workload: the user's command.
        isolation: how the runs' writes are kept away from the user's files.
        folder: where the first run leaves what teaches the others.
        patience_s: how long a run may take.
        code: what trials have compiled so far.
        at_once_count: runs that memory has room for.
        assumed: what the user granted, by name.
        deadline: when no run is waited for any more.
        reference: levers under which all runs are; plans are given without them.
    """

    def __init__(
        self, workload: Workload, *, isolation: Isolation, folder: Path, patience_s: float,
        code: CompiledCode, at_once_count: int, assumed: frozenset[str], deadline: Deadline,
        reference: Plan,
    ) -> None:  # fmt: skip
        self.teacher = str(folder)
        self.teaching_run: RecordedRun | None = None
        self.health: list[Mapping[str, Any]] = []
        self.launch_count = 0
        self._workload = workload
        self._isolation = isolation
        self._folder = folder
        self._patience_s = patience_s
        self._code = code
        self._at_once_count = at_once_count
        self._assumed = assumed
        self._deadline = deadline
        self._reference = reference
        self._teaching = Lock()

    def record(self, asked: Sequence[tuple[Plan, RecordingSpec]]) -> list[RecordedRun]:
        """Record runs; where one fails, the others are ended.

        Where an accelerator has no room for two at once, they are recorded one by one.

        Raises:
            Unprovable: the script as it is cannot be recorded.
            ScriptFailed, IsolationFailed, ChildLost: a run under a plan has failed.
            OutOfTime: the deadline has passed.
        """
        before, told_count = self.teaching_run, len(self.health)
        try:
            return self._record(asked)
        except NoRoom:
            if self._at_once_count == 1:
                raise
        self._at_once_count = 1
        del self.health[told_count:]
        if self.teaching_run is not before:  # one of those that are recorded again
            self.teaching_run = before
            self.forget()
        return self._record(asked)

    def _record(self, asked: Sequence[tuple[Plan, RecordingSpec]]) -> list[RecordedRun]:
        running = Running()
        with ThreadPoolExecutor(self._at_once_count) as pool:
            futures = [pool.submit(self._run, plan, take, running) for plan, take in asked]
            try:
                return [future.result() for future in futures]
            except BaseException:  # nobody waits for the others any more
                pool.shutdown(wait=False, cancel_futures=True)
                running.end()
                raise

    def forget(self) -> None:
        """Empty the folder of what the first run left."""
        shutil.rmtree(self._folder)
        self._folder.mkdir()

    def _run(self, plan: Plan, take: RecordingSpec, running: Running) -> RecordedRun:
        self.launch_count += 1
        try:
            with recorded(
                self._workload, plan.merged(self._reference), take,
                isolation=self._isolation, code=self._code, assumed=self._assumed,
                deadline=self._deadline, patience_s=self._patience_s, running=running,
            ) as (answer, folder):  # fmt: skip
                evidence = read_evidence(answer, folder)
                if take.teacher is None and not plan.settings:
                    self.health.append({**answer.health, "steps": answer.steps})
                    self._teach(folder, evidence)
                return evidence
        except TRIAL_FAILURES as failure:
            if plan.settings or (isinstance(failure, NoRoom) and self._at_once_count > 1):
                raise
            raise Unprovable(failure.last_words) from failure

    def _teach(self, folder: Path, evidence: RecordedRun) -> None:
        """Keep what the first of the two runs left for the others."""
        with self._teaching:
            if any(self._folder.iterdir()):
                return
            self.teaching_run = evidence
            for pattern in ("weights*", "batch*", "taught*", "rank*"):
                for path in folder.glob(pattern):
                    shutil.move(path, self._folder)


@contextmanager
def open_prover(
    workload: Workload, *, isolation: Isolation, step_s: float, start_s: float,
    patience_s: float, parameter_count: int, code: CompiledCode, at_once_count: int = 2,
    assumed: frozenset[str] = frozenset(), deadline: Deadline = NEVER,
    reference: Plan | None = None,
) -> Iterator[Prover]:  # fmt: skip
    """Open a prover of plans for a script; afterwards, remove what its runs left.

    The arguments are those of `Recordings` and `Prover`; here, the patience is for a first step.
    """
    folder = make_folder()
    # Two runs share the cores, and every step is hashed: be generous.
    run_s = patience_s + 4 * start_s + 10 * recorded_count(step_s) * step_s
    try:
        runs = Recordings(
            workload, isolation=isolation, folder=folder, patience_s=run_s, code=code,
            at_once_count=at_once_count, assumed=assumed, deadline=deadline,
            reference=reference or Plan(),
        )  # fmt: skip
        yield Prover(runs, step_s=step_s, parameter_count=parameter_count)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
