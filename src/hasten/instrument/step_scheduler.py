"""The child's side of a race: run the steps that were asked for, then wait for the next word."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hasten.instrument import examine
from hasten.instrument.traits import FlopProbe, Traits, peaks, usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.instrument.watch import Watch

Message = dict[str, Any]


class StepScheduler:
    """Run turns of steps under alternating plans, parked at a step boundary between commands.

    A turn is (plan index, steps not counted, steps counted, watched): the plan is switched at
    the boundary, outside the clock, then the uncounted steps settle what the switch disturbed.

    Args:
        watch: the seams; its ledger is restarted at the head of each turn.
        switch: applies a plan, given as lever settings.
        talk: sends a message and returns the parent's next command; blocks.
    """

    def __init__(
        self,
        watch: Watch,
        switch: Callable[[dict[str, Any]], None],
        talk: Callable[[Message], Message],
    ) -> None:
        self.traits = Traits(watch.fetches)
        watch.observers.append(self.traits)
        self._watch = watch
        self._switch = switch
        self._talk = talk
        self._plans: list[dict[str, Any]] = []
        self._queue: list[list[int]] = []
        self._done: list[list[list[int]]] = []
        self._skip_count = self._left_count = 0
        self._answer: Message = {"kind": "training"}
        self._flops: FlopProbe | None = None
        self._examination: examine.Examination | None = None

    def stepped(self, phases_ns: tuple[int, ...], sample_count: int) -> None:
        """Take in a finished step; switch plans or wait for a command when a turn is over."""
        self.traits.stepped(phases_ns)
        if self._answer["kind"] == "training":
            self._answer |= {"step_ns": sum(phases_ns), "at_s": time.monotonic()}
        if self._skip_count:
            self._skip_count -= 1
        elif self._left_count:
            self._left_count -= 1
            self._done[-1].append([sample_count, *phases_ns])
        if self._skip_count or self._left_count:
            return
        if self._queue:
            self._begin(self._queue.pop(0))
        else:
            self._listen()
        self._watch.ledger.start()

    def _begin(self, turn: list[int]) -> None:
        plan, self._skip_count, self._left_count, watched = turn
        if plan < len(self._plans):
            self._switch(self._plans[plan])
        if watched:
            self._watch.resume()
        else:
            self._watch.pause()
        self._done.append([])

    def _listen(self) -> None:
        if self._flops is not None:
            self._answer = {"kind": "flops", "flops": self._flops.close()}
            self._flops, self._done = None, []
        elif self._examination is not None:
            found = self._examination.end()
            self._answer = {"kind": "examined", "found": found, "turns": self._done}
            self._examination, self._done = None, []
        elif self._done:
            self._answer = {"kind": "turns", "turns": self._done, "usage": usage()}
            self._done = []
        while True:
            command = self._talk(self._answer)
            if command["do"] == "turns":
                self._queue = [list(turn) for turn in command["turns"]]
                self._begin(self._queue.pop(0))
                return
            if command["do"] == "flops":
                self._watch.resume()
                self._flops = FlopProbe()
                self._left_count = 1
                self._done.append([])
                return
            if command["do"] == "examine":
                self._watch.resume()
                self._examination = examine.Examination(self._watch, examine.discover())
                self._left_count = command["count"]
                self._done.append([])
                return
            self._answer = self._reply(command)

    def _reply(self, command: Message) -> Message:
        if command["do"] == "plans":
            self._plans = command["plans"]
            self._switch(self._plans[0])
            return {"kind": "plans"}
        if command["do"] == "facts":
            unit = self._watch.samples.unit
            return {
                "kind": "facts", "traits": self.traits.read(), "usage": usage(), "unit": unit,
                "compile_s": self._watch.live.compile_s,
                "first_pass_s": self._watch.live.first_pass_s,
            }  # fmt: skip
        if command["do"] == "peaks":
            return {"kind": "peaks", **peaks(self.traits.device)}
        return {"kind": "error", "why": f"unknown command {command['do']!r}"}
