"""The watch, to which the seams report: it lets levers act, and notifies who follows the loop."""

from __future__ import annotations

import os
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any

from hasten.instrument.eager import stay_eager, uncompiled
from hasten.instrument.fetches import FetchClock
from hasten.instrument.ledger import INDEX, Ledger
from hasten.instrument.live import LiveTraining
from hasten.instrument.phase_tracker import PhaseTracker
from hasten.instrument.seams import SeamGroups, differentiated
from hasten.instrument.starts import LoaderLines, StartClock
from hasten.instrument.step_ends import StepEnds, StepsInProgress, steps_around
from hasten.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

_DATA, _FORWARD = INDEX[Phase.DATA], INDEX[Phase.FORWARD]
_BACKWARD, _TRANSFER = INDEX[Phase.BACKWARD], INDEX[Phase.TRANSFER]


def _in_loader_worker() -> bool:
    from torch.utils.data import get_worker_info

    return get_worker_info() is not None


class Watch:
    """Follow one training loop through the seams, and steer it for the levers.

    Args:
        measuring: time the steps; False only steers, with the seams that levers need.

    Attributes:
        on_step: called at the end of each training step with nanoseconds per phase (in the
            order of `ledger.PHASES`) and the samples of the step.
    """

    def __init__(self, *, measuring: bool) -> None:
        self.measuring = measuring
        self.on_step: Callable[[tuple[int, ...], int], None] = lambda phases_ns, count: None
        self.thread = get_ident()
        self.live = LiveTraining(lambda: get_ident() == self.thread)
        self.observers: list[Any] = []
        self.ledger = Ledger()
        self.tracker = PhaseTracker(self.ledger, self.observers)
        self.fetches = FetchClock()
        self.starts = StartClock(lambda: self.live.paused_s)
        self.loader_lines = LoaderLines()
        self.debug_lines: list[tuple[str, int]] = []
        self._pid = os.getpid()
        self._steps = StepsInProgress()
        self._ends = StepEnds(self.live, self._steps)
        self._seams = SeamGroups(self, measuring=measuring)
        self.live.seams_wanted = self.live.start.after = self._seams.mind

    # ---- in and out

    def install(self) -> None:
        """Put every seam in. Forked children (loader workers) are left alone."""
        self._seams.install()
        stay_eager()
        self._seams.hook(self._optimizer_begins, self._optimizer_ends)

    def pause(self) -> None:
        """Take the seams out, since they cost time, but still see the end of each step.

        If the seams themselves show where a step ends (updates by hand, or by optimizers
        inside a backward pass), they stay.
        """
        if not self._ends.needs_seams:
            self._seams.remove()

    def resume(self) -> None:
        """Put the seams back in after `pause`."""
        self._seams.install()

    def detach(self) -> None:
        """Take everything out of torch that `install` has put in, for good."""
        self._seams.detach()
        self.thread = 0  # a forked process begins in a thread of the same identity

    # ---- what the seams report

    def root_call(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Run a call of `module` from the script, under its phase and its levers."""
        if self.ledger.current == _DATA or self._ends.backward_id() != -1:
            # A transform of the dataset; the recomputation of a checkpointed block.
            return original(module, *args, **kwargs)
        live = self.live
        if not live.start.begun and _in_loader_worker():  # started by spawn
            self.detach()
            return original(module, *args, **kwargs)
        if self.measuring:
            phase_index = self.tracker.phase_of(module)
            if phase_index == _FORWARD and self._ends.due:
                self._end_step()
        live.start.begin()
        # Otherwise its parameters cannot be seen, or only after this call.
        is_met = live.roots.meet(module)
        if not self.measuring or not is_met:
            return live.roots.call(original, module, args, kwargs)
        self.tracker.enter_root(phase_index, module, args, kwargs)
        try:
            return live.roots.call(original, module, args, kwargs)
        finally:
            self.tracker.leave_root(phase_index)

    def constructed(self, optimizer: Any) -> None:
        """Note that the script has made an optimizer, before its first step."""
        self._ends.constructed(optimizer)

    def backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass, under its phase and its levers."""
        within = self.live.phases.within
        if not self.measuring:
            return within(Phase.BACKWARD, original, *args, **kwargs)
        if self.ledger.current not in (_FORWARD, _BACKWARD):  # else a gradient within the model
            if self._ends.due and not self.tracker.after_forward:
                self._end_step()
            self.tracker.begins_backward(differentiated(args, kwargs))
            self._ends.begins_backward()
        self.ledger.enter(_BACKWARD)
        try:
            result = within(Phase.BACKWARD, original, *args, **kwargs)
        finally:
            self.ledger.leave()
        if self._ends.ends_after_backward():
            self._end_step()
        return result

    def loader_iter(self, original: Any, loader: Any) -> Any:
        """Make an iterator of `loader`, through a lever if one wants to."""
        make = self.live.answers.make
        self.ledger.enter(_DATA)
        try:
            if not self.measuring:
                return make(original, loader)
            return self.starts.begin(make, original, loader)
        finally:
            self.ledger.leave()

    def loader_next(self, original: Any, iterator: Any) -> Any:
        """Fetch the next batch, through a lever if one wants to."""
        nested = self.ledger.current == _DATA
        if self.measuring:
            if self._ends.due:
                self._end_step()
            self.tracker.enter_data(nested=nested)
        else:
            self.ledger.enter(_DATA)
        try:
            batch = self.starts.advance(self.live.answers.advance, original, iterator)
        finally:
            self.ledger.leave()
        if self.measuring and not nested:
            self.tracker.loaded(iterator, batch)
        return batch

    def transfer(self, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Move a tensor, through a lever if one wants to; the time of CPU tensors is TRANSFER."""
        move = self.live.answers.move
        if not self.measuring or not tensor.is_cpu:
            return move(original, tensor, args, kwargs)
        self.ledger.enter(_TRANSFER)
        try:
            return move(original, tensor, args, kwargs)
        finally:
            self.ledger.leave()

    # ---- what torch's hooks around the steps of optimizers report

    @uncompiled
    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if get_ident() != self.thread:
            if not self._ends.moves_here():
                return
            self.thread = get_ident()
        if self._steps:
            self._steps.leave_raised(optimizer, steps_around())
        live = self.live
        wanted = self.measuring or live.phases.enterers or live.updates.judges
        if wanted or self._steps or optimizer not in live.optimizers:
            self._enter_step(optimizer, (*args[1:], *kwargs.values()))
        else:  # a real run of short steps pays for each line
            self._steps.begin(optimizer, ())

    def _enter_step(self, optimizer: Any, given: tuple[Any, ...]) -> None:
        live = self.live
        if not self._steps:
            live.start.begin()
            if optimizer not in live.optimizers:
                self._ends.by_hand = False
                live.optimizers.add(optimizer)
            for observer in self.observers:
                observer.steps(optimizer)
        if self.measuring:
            self.tracker.enter_optimizer()
        leaves = live.phases.enter(Phase.OPTIMIZER)
        leaves += live.updates.begin(optimizer, given)
        self._steps.begin(optimizer, (*leaves, self.ledger.leave) if self.measuring else leaves)

    @uncompiled
    def _optimizer_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._steps.end(optimizer) or not self.measuring:
            return
        self.tracker.after_forward = False  # no loss follows now
        if self._ends.ends_after(optimizer):
            self._end_step()

    def _end_step(self) -> None:
        if os.getpid() != self._pid:
            return
        self._ends.ended()
        self._seams.mind_accelerators()
        step = self.tracker.cut()
        began_s = time.monotonic()
        self.on_step(*step)
        self.live.paused_s += time.monotonic() - began_s
