"""One living child of the script, parked at a step boundary until it is its turn."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hasten import protocol
from hasten.errors import ChildLost, ScriptFailed, TooFewSteps
from hasten.protocol import Mode
from hasten.records import Phase, Step
from hasten.trials import stack_dump
from hasten.trials.channel import Listener
from hasten.trials.child_environment import environment
from hasten.trials.compiled_code import LentCode
from hasten.trials.deadline import NEVER
from hasten.trials.exit_errors import MORE_WORK, bad_exit, never_trained, tail_of
from hasten.trials.isolation.removal import wipe
from hasten.trials.isolation.scratch import make_scratch
from hasten.trials.process import Isolation, Process
from hasten.trials.rank_channels import RankChannels
from hasten.trials.waiting import awaited
from hasten.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.protocol import Answer, Command, Turn
    from hasten.records import Plan, Workload
    from hasten.trials.compiled_code import CompiledCode
    from hasten.trials.deadline import Deadline

_A = TypeVar("_A", bound="Answer")
_PHASES = tuple(Phase)
_END_S = 30.0
_MARK = "reached"


class TrialProcess:
    """A child that trains under a plan and obeys commands at step boundaries.

    Attributes:
        start_s: seconds from its start to the end of its first step, after `begin`.
    """

    def __init__(
        self, workload: Workload, plan: Plan, *, isolation: Isolation, patience_s: float,
        deadline: Deadline = NEVER, code: CompiledCode | None = None,
        assumed: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.plan = plan
        self.step_count = 0
        self.first_step_s = self.start_s = 0.0
        self._counted = False
        self._parked = False
        self._patience_s = patience_s
        self._deadline = deadline
        self._channel: RankChannels | None = None
        self._scratch = make_scratch()
        self._code = LentCode(code, self._scratch)
        with ExitStack() as undo:
            undo.callback(wipe, str(self._scratch))
            socket, mark = self._scratch / "s", self._scratch / _MARK
            self._listener = Listener(socket)
            undo.callback(self._listener.close)
            env = environment(
                plan, mode=Mode.TRIAL, assumed=assumed, socket=str(socket), mark=str(mark)
            )
            env |= self._code.lend(plan)
            self._started_s = time.monotonic()
            self._process = Process.start(
                workload.command,
                env=env,
                cwd=workload.cwd,
                scratch=self._scratch,
                isolation=isolation,
            )
            undo.pop_all()

    def begin(self) -> None:
        """Wait until the child stands at its first step boundary.

        Raises:
            NeverTrains: it ended, or did not train in time.
            ScriptFailed: it crashed before that.
            IsolationFailed: it wrote where its writes cannot be redirected, or was started outside
                of the isolation.
            OutOfTime: the deadline has passed.
        """
        until = time.monotonic() + self._deadline.cut(self._patience_s)
        found = self._listener.adopt_ranks(
            protocol.FirstStep, until=until, alive=lambda: self._process.wait(0) is None
        )
        if found is None:
            self._raise_never_trained()
        self._listener.close()
        channels = [channel for channel, _ in found]
        self._channel = RankChannels(channels)
        for channel in channels:
            self._process.follow(channel.peer_pid)
        message = found[0][1]
        self.first_step_s = message.step_ns * 1e-9
        self.start_s = message.at_s - self._started_s
        self.step_count = 1

    def ask(self, command: Command, answer: type[_A], timeout_s: float) -> _A:
        """Send a command and return the answer.

        After `timeout_s` without an answer it is looked whether the script computes.

        Raises:
            TooFewSteps: the script has come to its end.
            ScriptFailed: the script crashed, or hangs.
            OutOfTime: the deadline has passed.
        """
        assert self._channel is not None  # noqa: S101  # begin() was called
        self._deadline.check()
        began_s = time.monotonic()
        try:
            self._channel.send(command)
            found = awaited(
                self._channel.hear, self._process,
                timeout_s=timeout_s, deadline=self._deadline,
            )  # fmt: skip
        except ChildLost:
            self._code.spoil()
            self._raise_ended()
        if found is None:
            self._code.spoil()
            self._deadline.check()
            self._raise_halted(self._channel, time.monotonic() - began_s)
        if isinstance(found, protocol.Ended):
            self.step_count, self._counted = found.step_count, True
            self._raise_ended()
        if not isinstance(found, answer):
            why = found.why if isinstance(found, protocol.CommandRefused) else type(found).__name__
            raise ChildLost(f"The child refused: {why}.", remedy="Report this.")
        return found

    def switch(self, plans: Sequence[Plan]) -> None:
        """Tell the child which plans its turns refer to, and switch to the first."""
        self._code.go_over(*plans)
        settings = tuple(dict(plan.settings) for plan in plans)
        self.ask(protocol.SetPlans(plans=settings), protocol.PlansSet, 60.0)

    def turns(
        self, turns: Sequence[Turn], *, timeout_s: float
    ) -> tuple[list[list[Step]], Mapping[str, float]]:
        """Run turns and return the steps of each, and what the process has used so far."""
        command = protocol.RunTurns(turns=tuple(turns))
        answer = self.ask(command, protocol.TurnsRun, timeout_s + self._code.patience_s)
        self.step_count += sum(turn.skip_count + turn.step_count for turn in turns)
        return [[_step(row) for row in rows] for rows in answer.turns], answer.usage

    def examine(
        self, count: int, *, timeout_s: float, least_count: int | None = None, most_s: float = 0.0
    ) -> tuple[list[Step], dict[str, Any]]:
        """Look closely at `count` steps; return them, and what the examiners found.

        `least_count` are enough once the look has taken `most_s`; all by default.
        """
        least_count = count if least_count is None else min(least_count, count)
        command = protocol.Examine(step_count=count, least_count=least_count, most_s=most_s)
        answer = self.ask(command, protocol.Examined, timeout_s + self._code.patience_s)
        steps = [_step(row) for row in answer.turns[0]]
        self.step_count += len(steps)
        return steps, answer.found

    def park(self) -> None:
        """Stop the child and its loader workers: they neither take CPU nor fetch ahead."""
        if not self._parked:
            self._process.stop()
            self._parked = True
            self._code.hand_on()

    def resume(self) -> None:
        """Let the child go on."""
        if self._parked:
            self._process.resume()
            self._parked = False

    def close(self) -> None:
        """End the child and everything that it started."""
        self._code.hand_on()
        if self._channel is not None:
            self._channel.close()
        self._listener.close()
        self._process.kill()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the isolation could not do in full."""
        return self._process.notes

    @property
    def _when(self) -> str:
        """After how many steps; a child that was killed could not tell the exact number."""
        steps = counted(self.step_count, "training step")
        return f"after {steps}" if self._counted else f"after at least {steps}"

    def _raise_never_trained(self) -> NoReturn:
        runs, place = self._process.exit is None, ""
        if runs:
            self._deadline.check()
            place = stack_dump.said_of(self._scratch, self._listener.pids)
        imported_torch = bool(self._listener.attached)
        self._listener.close()
        error = never_trained(
            self._process, reached=(self._scratch / _MARK).exists(), place=place,
            forked=(self._scratch / protocol.FORKED).exists(),
            imported_torch=imported_torch, ranks=self._listener.rank_counts,
            patience_s=self._patience_s, folder=self._scratch.parent,
        )  # fmt: skip
        if runs:
            self._process.kill()
        raise error

    def _raise_halted(self, channel: RankChannels, waited_s: float) -> NoReturn:
        place = stack_dump.said_of(self._scratch, [channel.pid] if channel.pid else [])
        raise ScriptFailed(
            f"The script came to a halt {self._when}: no answer in {waited_s:.0f} s.{place}",
            remedy="Raise --startup-timeout if its steps take that long.",
            output=tail_of(self._process),
        )

    def _raise_ended(self) -> NoReturn:
        ended = self._process.wait(self._deadline.cut(_END_S))
        if ended is None:
            self._process.kill()
        elif ended.code or ended.signal or ended.lost:
            error = bad_exit(self._process, when=self._when, folder=self._scratch.parent)
            if error is not None:
                raise error
        raise TooFewSteps(
            f"The script ended {self._when}.",
            remedy=MORE_WORK,
            output=tail_of(self._process),
            step_count=self.step_count,
        )


def _step(row: Sequence[int]) -> Step:
    count, *phases_ns = row
    return Step(
        phase_ns={p: ns for p, ns in zip(_PHASES, phases_ns, strict=True) if ns},
        sample_count=count,
    )
