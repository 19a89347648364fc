"""One recorded run of the script: the first steps with pinned seeds, then the end."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from hasten.errors import NoRoom, ScriptFailed
from hasten.protocol import Mode, Recorded
from hasten.trials.blocks import patience_s as more_patience_s
from hasten.trials.channel import Listener
from hasten.trials.child_environment import environment
from hasten.trials.deadline import NEVER
from hasten.trials.exit_errors import bad_exit
from hasten.trials.isolation.removal import wipe
from hasten.trials.isolation.scratch import make_scratch
from hasten.trials.process import Isolation, Process
from hasten.trials.waiting import awaited

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hasten.protocol import RecordingSpec
    from hasten.records import Plan, Workload
    from hasten.trials.channel import Channel
    from hasten.trials.compiled_code import CompiledCode
    from hasten.trials.deadline import Deadline

_SEED = 20_240_229


class Running:
    """The recorded runs that are under way, so that another thread can end them all."""

    def __init__(self) -> None:
        self._processes: set[Process] = set()
        self._over = False
        self._lock = Lock()

    def end(self) -> None:
        """End all of them, and those that are still to begin, as soon as they do."""
        with self._lock:
            self._over = True
            for process in self._processes:
                process.end()

    @contextmanager
    def holding(self, process: Process) -> Iterator[None]:
        """Count a process among the runs under way."""
        with self._lock:
            self._processes.add(process)
            if self._over:
                process.end()
        try:
            yield
        finally:
            with self._lock:
                self._processes.discard(process)


@contextmanager
def recorded(
    workload: Workload, plan: Plan, take: RecordingSpec, *, isolation: Isolation, patience_s: float,
    code: CompiledCode, assumed: frozenset[str] = frozenset(), running: Running | None = None,
    deadline: Deadline = NEVER,
) -> Iterator[tuple[Recorded, Path]]:  # fmt: skip
    """Run the first steps of the script under `plan`; yield what was recorded and where.

    After `patience_s` it is looked whether the run still computes. It joins the group `running`
    while it goes on.

    Raises:
        ScriptFailed: the run ended, or took too long, before it had anything to say.
        IsolationFailed: what should have been recorded was started outside of the isolation.
        OutOfTime: the deadline has passed.
    """
    with ExitStack() as undo:
        scratch = make_scratch()
        undo.callback(wipe, str(scratch))
        listener = Listener(scratch / "s")
        undo.callback(listener.close)
        tensors = scratch / "tensors"
        tensors.mkdir()
        env = _pinned(plan, take, assumed=assumed, socket=str(scratch / "s"), folder=str(tensors))
        env |= code.lend(scratch, plan)
        process = Process.start(
            workload.command, env=env, cwd=workload.cwd, scratch=scratch, isolation=isolation
        )
        undo.callback(process.kill)
        undo.enter_context((running or Running()).holding(process))

        timeout_s = patience_s + more_patience_s(plan)
        found = _ranks(listener, process, timeout_s=timeout_s, deadline=deadline)
        if found is None:
            error = bad_exit(process, when="in a run for the proof", folder=scratch.parent)
            if isinstance(error, NoRoom):
                raise error
            deadline.check()
            raise ScriptFailed(
                "A run for the proof ended or hung before its steps were recorded.",
                remedy="See the output of the script.",
                output=process.errors() or process.output(),
            )
        for channel, _ in found:
            undo.callback(channel.close)
            process.follow(channel.peer_pid)
        code.collect(scratch)
        yield found[0][1], tensors


def _ranks(
    listener: Listener, process: Process, *, timeout_s: float, deadline: Deadline
) -> list[tuple[Channel, Recorded]] | None:
    """Return what each rank has recorded; None where they have ended, or hang."""

    def look(wait_s: float) -> list[tuple[Channel, Recorded]] | None:
        until, alive = time.monotonic() + wait_s, lambda: process.wait(0) is None
        return listener.adopt_ranks(Recorded, until=until, alive=alive)

    return awaited(look, process, timeout_s=timeout_s, deadline=deadline)


def _pinned(plan: Plan, take: RecordingSpec, **details: Any) -> dict[str, str]:
    env = environment(plan, mode=Mode.VERIFY, seed=_SEED, recording=take, **details)
    env["PYTHONHASHSEED"] = str(_SEED)
    # Two runs share the cores; threads that spin while they wait would starve each other.
    env.setdefault("OMP_WAIT_POLICY", "passive")
    return env
