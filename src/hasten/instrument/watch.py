"""The watch: what the seams report to, and what decides where a step ends."""

from __future__ import annotations

import os
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any

from hasten.instrument.eager import stay_eager
from hasten.instrument.fetches import FetchClock
from hasten.instrument.ledger import INDEX, Ledger
from hasten.instrument.lever_calls import convert
from hasten.instrument.live import LiveTraining
from hasten.instrument.loader_lines import LoaderLines
from hasten.instrument.object_table import Table
from hasten.instrument.samples import SampleCounter, quietly
from hasten.instrument.seams import SeamGroups, differentiated
from hasten.instrument.starts import StartClock
from hasten.instrument.step_cycle import Cycle
from hasten.instrument.steps_in_progress import asks_backward_id, steps_around
from hasten.instrument.weight_samples import read_some, spread
from hasten.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable


_DATA, _FORWARD, _LOSS = INDEX[Phase.DATA], INDEX[Phase.FORWARD], INDEX[Phase.LOSS]
_BACKWARD, _OPTIMIZER = INDEX[Phase.BACKWARD], INDEX[Phase.OPTIMIZER]
_EVALUATION, _TRANSFER = INDEX[Phase.EVALUATION], INDEX[Phase.TRANSFER]


def _asks_for_gradients() -> Callable[[], bool]:
    """Return what tells whether operations are recorded for a backward pass just now."""
    import torch

    return torch.is_grad_enabled


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
        self.live = LiveTraining(self._in_loop)
        self.ledger = Ledger()
        self.samples = SampleCounter()
        self.fetches = FetchClock()
        self.starts = StartClock(lambda: self.live.paused_s)
        self.loader_lines = LoaderLines()
        self.debug_lines: list[tuple[str, int]] = []
        self.thread = get_ident()
        self.observers: list[Any] = []
        self._pid = os.getpid()
        self._backward_id = asks_backward_id()
        self._asks_for_gradients = _asks_for_gradients()
        self._cycle = Cycle()
        self._hands = ManualUpdateDetector(self.live)
        self._first_parameters = Table()
        self._trained_parameters: set[int] = set()
        self._stepping: list[int] = []
        self._leaving: list[tuple[Callable[[], None], ...]] = []
        self._after_forward = False
        self._evaluating = False
        self._in_backward = self._ends_late = False
        self._seams = SeamGroups(self, measuring=measuring)
        self.live.seams_wanted = self._seams.mind

    def _in_loop(self) -> bool:
        from torch.compiler import is_compiling

        if is_compiling():  # asked first: torch's compiler cannot look through what follows
            return False
        # A forked loader worker begins in a thread of the same name.
        return get_ident() == self.thread and os.getpid() == self._pid

    # ---- in and out

    def install(self) -> None:
        """Put every seam in. Forked children (loader workers) are left alone."""
        self._seams.install()
        stay_eager()
        self._seams.hook(self._optimizer_begins, self._optimizer_ends)

    def pause(self) -> None:
        """Take the seams out, but for the end of each step: the cost of our own hooks.

        Where the seams themselves tell where a step ends (updates by hand, or of optimizers
        inside a backward pass) they stay.
        """
        if not (self._hands.update or self._in_backward):
            self._seams.remove()

    def resume(self) -> None:
        """Put the seams back in after `pause`."""
        self._seams.install()

    def _detach(self) -> None:
        self._seams.detach()

    # ---- what the seams report

    def root_call(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Run a call of `module` from the script, under its phase and its levers."""
        ledger = self.ledger
        if ledger.current == _DATA or self._backward_id() != -1:
            # A transform of the dataset; the recomputation of a checkpointed block.
            return original(module, *args, **kwargs)
        if not self.live.start.begun and _in_loader_worker():  # started by spawn
            self._detach()
            return original(module, *args, **kwargs)
        phase_index = self._phase_of(module) if self.measuring else _FORWARD
        if phase_index == _FORWARD and self._hands.due:
            self._end_step()
        self.live.start.begin()
        converters = self.live.roots.meet(module)
        if converters is None:  # nobody can look at its parameters, or only after this call
            return self.live.roots.call_plainly(original, module, args, kwargs)
        if converters:
            args = convert(converters, args)
            kwargs = convert(converters, kwargs) if kwargs else kwargs
        if not self.measuring:
            return self.live.roots.call(original, module, args, kwargs)
        self._enter_root(phase_index, module, args, kwargs)
        try:
            return self.live.roots.call(original, module, args, kwargs)
        finally:
            ledger.leave()
            # What follows a teacher may still be the student's loss; a rollout has none.
            asked = self._after_forward or self._asks_for_gradients()
            self._after_forward = asked and phase_index in (_FORWARD, _LOSS)

    def _enter_root(self, phase_index: int, module: Any, args: Any, kwargs: Any) -> None:
        ledger = self.ledger
        ledger.loop_begins()
        ledger.enter(phase_index)
        if phase_index == _EVALUATION:
            self._evaluating = True
            ledger.commit_as_evaluation()
            self.samples.evaluated()
        elif phase_index == _FORWARD:
            self._evaluating = False
            if not self._after_forward:
                ledger.commit()
            quietly(self.samples.called, id(module), args, kwargs)
            for observer in self.observers:
                observer.called(module, args, kwargs)

    def _phase_of(self, module: Any) -> int:
        """Return FORWARD, LOSS (no parameters) or EVALUATION (trained, but not now)."""
        first, asks = self._first_parameters.get(module), self._asks_for_gradients()
        if first is None:
            try:
                parameters = list(module.parameters())
            except Exception:  # a module that cannot be asked
                return _FORWARD
            first = id(parameters[0] if parameters else None)
            self._first_parameters[module] = first
            if asks:
                self._trained_parameters.update(map(id, parameters))
        if first == id(None):  # a criterion; behind an evaluated model it is part of that
            return _EVALUATION if self._evaluating and not asks else _LOSS
        if asks or module.training:
            return _FORWARD
        # A teacher or a target network also runs without gradients inside a step; an
        # evaluation is the trained module itself (or a part of it), switched to eval.
        trained = not self._trained_parameters or first in self._trained_parameters
        return _EVALUATION if trained else _FORWARD

    def constructed(self, optimizer: Any) -> None:
        """Note that the script has made an optimizer, before its first step."""
        self._hands.constructed(optimizer)

    def backward(self, original: Any, args: Any, kwargs: Any) -> Any:
        """Run a backward pass, under its phase and its levers."""
        if not self.measuring:
            return self.live.phases.within(Phase.BACKWARD, original, *args, **kwargs)
        self.backward_begins(differentiated(args, kwargs))
        self.ledger.enter(_BACKWARD)
        try:
            result = self.live.phases.within(Phase.BACKWARD, original, *args, **kwargs)
        finally:
            self.ledger.leave()
        if self._ends_late and not self._stepping and self._backward_id() == -1:
            self._end_step()
        return result

    def backward_begins(self, tensors: tuple[Any, ...]) -> None:
        """A backward pass starts: what ran since the forward pass was the loss."""
        if self.ledger.current in (_FORWARD, _BACKWARD):  # a gradient inside the model
            return
        if self._hands.due and not self._after_forward:
            self._end_step()
        self.ledger.loop_begins()
        self.ledger.enter(_LOSS)
        self.ledger.leave()
        if self._after_forward:
            self.ledger.commit_as_loss()
        else:
            self.ledger.commit()
        self._after_forward = False
        self.samples.trained()
        for observer in self.observers:
            observer.backward(tensors)
        self._hands.begins_backward(stepping=bool(self._stepping) or self._in_backward)

    @property
    def evaluating(self) -> bool:
        """True between a call without gradients and what trains again."""
        return self._evaluating

    def loader_iter(self, original: Any, loader: Any) -> Any:
        """Make an iterator of `loader`, by a lever where one wants to."""
        self.ledger.enter(_DATA)
        try:
            if not self.measuring:
                return self.live.answers.make(original, loader)
            return self.starts.begin(self.live.answers.make, original, loader)
        finally:
            self.ledger.leave()

    def loader_next(self, original: Any, iterator: Any) -> Any:
        """Fetch the next batch; the time is DATA until a call tells what it was for."""
        if self._hands.due:
            self._end_step()
        ledger = self.ledger
        nested = ledger.current == _DATA
        self._after_forward = False
        ledger.enter(_DATA)
        if self._evaluating:  # metrics of the batch before
            ledger.commit_as_evaluation()
            self._evaluating = False
        if self.measuring and not nested:
            for observer in self.observers:
                observer.loading()
        try:
            if self.measuring:
                batch = self.starts.advance(self.live.answers.advance, original, iterator)
            else:
                batch = self.live.answers.advance(original, iterator)
        finally:
            ledger.leave()
        if self.measuring and not nested:
            quietly(self.samples.loaded, batch)
            for observer in self.observers:
                observer.loaded(iterator, batch)
        return batch

    def transfer(self, original: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
        """Move a tensor, by a lever where one wants to; the time of CPU tensors is TRANSFER."""
        if not self.measuring or not tensor.is_cpu:
            return self.live.answers.move(original, tensor, args, kwargs)
        self.ledger.enter(_TRANSFER)
        try:
            return self.live.answers.move(original, tensor, args, kwargs)
        finally:
            self.ledger.leave()

    # ---- where a step ends

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._follows():
            return
        if id(optimizer) in self._stepping:  # its last step raised, and the script went on
            self._unwind(self._stepping.index(id(optimizer)))
        elif self._stepping:
            self._unwind(steps_around())
        if not self._stepping:
            self.live.start.begin()
            if optimizer not in self.live.optimizers:
                self._hands.update = False
                self.live.optimizers.add(optimizer)
            for observer in self.observers:
                observer.steps(optimizer)
        self._stepping.append(id(optimizer))
        if self.measuring:
            self.ledger.loop_begins()
            self.ledger.enter(_OPTIMIZER)
            self.ledger.commit()
        self._leaving.append(self.live.phases.enter(Phase.OPTIMIZER))

    def _follows(self) -> bool:
        """Return whether this thread runs the loop, which may be one of its own."""
        if get_ident() == self.thread:
            return True
        if len(self.live.optimizers.known):
            return False
        if self._backward_id() != -1:  # in a hook, on a thread of autograd's
            self._in_backward = self._ends_late = True
            return False
        self.thread = get_ident()
        return True

    def _optimizer_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self._stepping:
            return
        self._unwind(self._stepping.index(id(optimizer)))
        if not self.measuring:
            return
        self._hands.stepped()
        self._after_forward = False
        if self._stepping:
            return
        if self._backward_id() != -1:  # a hook: what is left of the pass belongs to the step
            self._in_backward = self._ends_late = True
        elif self._cycle.ends_step(id(optimizer), len(self._hands.made)):
            self._end_step()

    def _unwind(self, around_count: int) -> None:
        """Leave all steps but so many of the outermost: those inside have ended, or raised."""
        while len(self._stepping) > around_count:
            self._stepping.pop()
            for leave in self._leaving.pop():
                leave()
            if self.measuring:
                self.ledger.leave()

    def _end_step(self) -> None:
        if not self.measuring or os.getpid() != self._pid:
            return
        self._hands.waiting = self._ends_late = False
        self._seams.mind_accelerators()
        phases = self.ledger.cut()
        count = self.samples.cut()
        for observer in self.observers:
            observer.ended()
        began_s = time.monotonic()
        self.on_step(phases, count)
        self.live.paused_s += time.monotonic() - began_s


# ---- whether a script updates its weights by hand: then a pass that follows another ends a step

_PATIENT_COUNT = 64


class ManualUpdateDetector:
    """Decide it at each backward pass, as long as no optimizer has stepped.

    A script without optimizers updates by hand. Of one that has made some, many passes say
    little (it accumulates gradients, takes inner steps, or skips those whose gradients are not
    finite), unless its weights move between them.

    Args:
        live: the optimizers and roots that are known.

    Attributes:
        update: the script updates its weights by hand.
        waiting: a backward pass has been made that no end of a step has followed.
    """

    def __init__(self, live: LiveTraining) -> None:
        self.update = self.waiting = False
        self.made = Table()
        self._live = live
        self._unstepped_count = 0
        self._before: dict[int, Any] = {}

    @property
    def due(self) -> bool:
        """Whether a step ends where the script goes on to the next forward pass or batch."""
        return self.update and self.waiting

    def constructed(self, optimizer: Any) -> None:
        """Note that the script has made an optimizer, before its first step."""
        self.made[optimizer] = None

    def begins_backward(self, *, stepping: bool) -> None:
        """Note a backward pass, inside the step of an optimizer or not."""
        self.waiting = True
        self._unstepped_count += 1
        if stepping or self.update or len(self._live.optimizers.known):
            return
        patient = self._unstepped_count <= _PATIENT_COUNT
        self.update = not len(self.made) or (not patient and self._moved())

    def stepped(self) -> None:
        """Note that an optimizer has made a step."""
        self._unstepped_count = 0
        self._before = {}

    def _moved(self) -> bool:
        """Return whether weights have moved since the last pass, True where nobody can tell.

        Those with gradients are looked at, or those of the roots where no optimizer has any.
        """
        import torch

        held = [p for made in self.made for group in made.param_groups for p in group["params"]]
        trained = [p for p in held if p.grad is not None]
        if not trained:
            trained = [p for root in self._live.roots.known for p in root.parameters()]
        try:
            now = {id(parameter): read_some(parameter) for parameter in spread(trained)}
            before, self._before = self._before, now
            known = before.keys() & now.keys()
            return not now or any(not torch.equal(before[key], now[key]) for key in known)
        except Exception:  # weights of a kind of their own
            return True
