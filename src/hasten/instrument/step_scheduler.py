"""The child's side of a race: run the steps that were asked for, then await the next command."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hasten import protocol
from hasten.instrument import accelerators, examine
from hasten.instrument.device_timeline import device_timeline
from hasten.instrument.processes import children_run_s
from hasten.instrument.traits import TraitsReader
from hasten.rank import own_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.instrument.watch import Watch
    from hasten.protocol import Answer, Command, Turn
    from hasten.records import Setting

    Settings = Mapping[str, Setting]


class StepScheduler:
    """Run turns of steps under alternating plans, parked at a step boundary between commands.

    The plan is switched at the boundary between turns, off the clock; then the steps that are not
    counted let the effects of the switch settle. If training is on an accelerator, its own time
    counts, not the host's: see `DeviceTimeline`. It finishes its work before this process is
    parked. `talk` sends an answer and blocks until the parent's next command.
    """

    def __init__(
        self, watch: Watch, switch: Callable[[Settings], None], talk: Callable[[Answer], Command]
    ) -> None:
        self.traits = TraitsReader(watch.fetches)
        watch.observers.append(self.traits)
        self._watch = watch
        self._switch = switch
        self._talk = talk
        self._plans: tuple[Settings, ...] = ()
        self._queue: list[Turn] = []
        self._done: list[list[list[int]]] = []
        self._late_rows: list[list[int] | None] | None = None
        self._skip_count = self._left_count = 0
        self._answer: Answer | None = None
        self._waited_s = 0.0
        self._examination: examine.Examination | None = None
        self._enough: tuple[float, int] | None = None

    def wait_for_go(self) -> None:
        """Wait until the parent lets this process train for the first time."""
        began_s = time.monotonic()
        self._talk(protocol.Ready())
        self._waited_s = time.monotonic() - began_s

    def stepped(self, phases_ns: tuple[int, ...], sample_count: int) -> None:
        """Record a finished step; switch plans or wait for a command when a turn is over."""
        self.traits.stepped(phases_ns)
        if self._answer is None:
            at_s = time.monotonic() - self._waited_s
            rank = own_rank()
            self._answer = protocol.FirstStep(
                step_ns=sum(phases_ns), at_s=at_s, rank=rank.number, rank_count=rank.local_count
            )
        row = None
        if self._skip_count:
            self._skip_count -= 1
        elif self._left_count:
            self._left_count -= 1
            row = [sample_count, *phases_ns]
            self._done[-1].append(row)
            self._cut_short()
        if self._late_rows is not None:
            self._late_rows.append(row)
        if self._skip_count or self._left_count:
            return
        if self._queue:
            self._begin(self._queue.pop(0))
        else:
            self._listen()
        self._watch.ledger.start()

    def _cut_short(self) -> None:
        """Let a closer look end that has taken long enough, as beside an evaluation."""
        if self._enough is not None and time.monotonic() >= self._enough[0]:
            left_count = max(0, self._enough[1] - len(self._done[-1]))
            self._left_count = min(self._left_count, left_count)

    def _begin(self, turn: Turn) -> None:
        self._skip_count, self._left_count = turn.skip_count, turn.step_count
        if turn.plan_index < len(self._plans):
            self._switch(self._plans[turn.plan_index])
        if turn.is_watched:
            self._watch.resume()
        else:
            self._watch.pause()
        self._done.append([])

    def _follow_device(self, step_count: int) -> None:
        """Let the ledger follow the accelerator, if any, through turns of this many steps."""
        ends = step_count < protocol.ENDLESS_COUNT
        timeline = device_timeline(self._watch.live) if ends else None
        if timeline is not None:
            self._late_rows = []
            self._watch.ledger.follow(timeline)

    def _read_device(self) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Replace the host's times of the turns' steps by the accelerator's.

        Returns:
            What else was seen, for `TurnsRun.usage`; and by phase the seconds of each step for
            which the accelerator was idle.
        """
        followed = self._watch.ledger.followed()
        rows, self._late_rows = self._late_rows or [], None
        for row, phases_ns in zip(rows, followed.steps, strict=False):
            if row is not None:
                row[1:] = phases_ns
        ratio = followed.caught_up_ratio
        told = {} if ratio is None else {"caught_up_ratio": ratio}
        return told, {
            phase: [idle_ns * 1e-9 for idle_ns in each] for phase, each in followed.idles_ns.items()
        }

    def _listen(self) -> None:
        seen, idle_s = self._read_device()
        if self._examination is not None:
            found = self._examination.end() | ({"device.idle_s": idle_s} if idle_s else {})
            self._answer = protocol.Examined(found=found, turns=self._done)
            self._examination, self._enough, self._done = None, None, []
        elif self._done:
            self._answer = protocol.TurnsRun(turns=self._done, usage={**_usage(), **seen})
            self._done = []
        assert self._answer is not None  # noqa: S101  # a step was taken in
        while True:
            command = self._talk(self._answer)
            if isinstance(command, protocol.RunTurns):
                self._follow_device(command.turns[0].step_count)
                self._queue = list(command.turns)
                self._begin(self._queue.pop(0))
                return
            if isinstance(command, protocol.Examine):
                self._watch.resume()
                self._follow_device(command.step_count)
                self._examination = examine.Examination(self._watch, examine.discover())
                self._left_count = command.step_count
                self._enough = time.monotonic() + command.most_s, command.least_count
                self._done.append([])
                return
            self._answer = self._reply(command)

    def _reply(self, command: Command) -> Answer:
        if isinstance(command, protocol.SetPlans):
            self._plans = command.plans
            self._switch(self._plans[0])
            return protocol.PlansSet()
        if isinstance(command, protocol.ReadTraits):
            return protocol.TraitsRead(
                traits=self.traits.read(),
                unit=self._watch.tracker.samples.unit,
            )
        if isinstance(command, protocol.ReadCosts):
            live = self._watch.live
            return protocol.CostsRead(compile_s=live.compile_s, first_pass_s=live.first_pass_s())
        return protocol.CommandRefused(why=f"unknown command {type(command).__name__}")


def _usage() -> dict[str, float]:
    """Return peak bytes, minor page faults and CPU seconds, loader workers included."""
    import resource

    own = resource.getrusage(resource.RUSAGE_SELF)
    return {
        **accelerators.usage(),
        "peak_rss_bytes": own.ru_maxrss * 1024,
        "faults_count": own.ru_minflt,
        "cpu_s": own.ru_utime + own.ru_stime + children_run_s(),
    }
