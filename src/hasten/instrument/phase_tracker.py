"""What a stretch of the loop was for, which often shows only in hindsight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.instrument.ledger import INDEX
from hasten.instrument.object_table import Table
from hasten.instrument.samples import SampleCounter, quietly
from hasten.modules import weights_of
from hasten.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.instrument.ledger import Ledger

_DATA, _FORWARD, _LOSS = INDEX[Phase.DATA], INDEX[Phase.FORWARD], INDEX[Phase.LOSS]
_OPTIMIZER, _EVALUATION = INDEX[Phase.OPTIMIZER], INDEX[Phase.EVALUATION]


class PhaseTracker:
    """Charge time and samples to the phases of the loop, and notify the observers.

    Attributes:
        evaluating: true from a call without gradients until training resumes.
        after_forward: whether what runs now may turn out to be the loss.
    """

    def __init__(self, ledger: Ledger, observers: list[Any]) -> None:
        import torch

        self.samples = SampleCounter()
        self.evaluating = self.after_forward = False
        self._is_passive = self._is_unsure = self._was_unsure = False
        self._ledger = ledger
        self._observers = observers
        self._asks_for_gradients: Callable[[], bool] = torch.is_grad_enabled
        self._first_parameters = Table()
        self._trained_parameters: set[int] = set()

    def phase_of(self, module: Any) -> int:
        """Return FORWARD, LOSS (no parameters) or EVALUATION (trained, but not now)."""
        first, asks = self._first_parameters.get(module), self._asks_for_gradients()
        if first is None:
            try:
                parameters = list(weights_of(module))
            except Exception:  # a module that cannot be asked
                return _FORWARD
            first = id(parameters[0] if parameters else None)
            self._first_parameters[module] = first
            if asks:
                self._trained_parameters.update(map(id, parameters))
        if first == id(None):  # a criterion; after an evaluated model it belongs to the evaluation
            return _EVALUATION if self.evaluating and not asks else _LOSS
        if asks or module.training:
            return _FORWARD
        # A teacher or a target network also runs without gradients inside a step; an
        # evaluation is the trained module itself (or a part of it), switched to eval.
        trained = not self._trained_parameters or first in self._trained_parameters
        return _EVALUATION if trained else _FORWARD

    def enter_root(self, phase_index: int, module: Any, args: Any, kwargs: Any) -> None:
        """Begin a root call, of the phase that `phase_of` returned."""
        ledger = self._ledger
        ledger.loop_begins()
        ledger.enter(phase_index)
        if phase_index == _EVALUATION:
            self.evaluating = True
            ledger.commit_as_evaluation()
            self.samples.evaluated()
        elif phase_index == _FORWARD:
            self.evaluating = False
            # A teacher is followed by its student; a copy with averaged weights that is validated,
            # or a model that is evaluated before it was trained, by the next batch.
            passive = not self._asks_for_gradients()
            if not passive:
                self._trains()
            elif not self.after_forward:
                self._is_passive = self._is_passive or not module.training
                self._is_unsure = not self._is_passive
            if not self.after_forward and not passive:
                ledger.commit()
            quietly(self.samples.called, id(module), args, kwargs)
            for observer in self._observers:
                observer.called(module, args, kwargs)

    def _trains(self) -> None:
        """Note that what came before was no evaluation."""
        self._is_passive = self._is_unsure = self._was_unsure = False

    def leave_root(self, phase_index: int) -> None:
        """End a root call."""
        self._ledger.leave()
        # What follows a teacher may still be the student's loss; a rollout has none.
        asked = self.after_forward or self._asks_for_gradients()
        self.after_forward = asked and phase_index in (_FORWARD, _LOSS)

    def begins_backward(self, tensors: tuple[Any, ...]) -> None:
        """A backward pass starts: what ran since the forward pass was the loss."""
        ledger = self._ledger
        ledger.loop_begins()
        ledger.enter(_LOSS)
        ledger.leave()
        if self.after_forward:
            ledger.commit_as_loss()
        else:
            ledger.commit()
        self.after_forward = False
        self._trains()
        self.samples.trained()
        for observer in self._observers:
            observer.backward(tensors)

    def enter_data(self, *, nested: bool) -> None:
        """Begin to fetch a batch: the time is DATA until a call shows what it was for.

        It is nested where the dataset reads another loader.
        """
        self.after_forward = False
        self._ledger.enter(_DATA)
        # Without gradients in training mode: a teacher, or a validation that forgets `eval()`,
        # which the batch after the next shows.
        self._is_passive = self._is_passive or (self._is_unsure and self._was_unsure)
        self._is_unsure, self._was_unsure = False, self._is_unsure or self._was_unsure
        if self.evaluating or self._is_passive:  # metrics of the batch before
            self._ledger.commit_as_evaluation()
            if self._is_passive:
                self.samples.evaluated()
            self.evaluating = self._is_passive = False
        if not nested:
            for observer in self._observers:
                observer.loading()

    def loaded(self, iterator: Any, batch: Any) -> None:
        """Note a batch."""
        quietly(self.samples.loaded, iterator, batch)
        for observer in self._observers:
            observer.loaded(iterator, batch)

    def enter_optimizer(self) -> None:
        """Begin a step of an optimizer: waiting time is what it seemed to be."""
        self._ledger.loop_begins()
        self._ledger.enter(_OPTIMIZER)
        self._ledger.commit()
        self._trains()

    def cut(self) -> tuple[tuple[int, ...], int]:
        """End a training step; return nanoseconds per phase and the samples of the step."""
        step = self._ledger.cut(), self.samples.cut()
        for observer in self._observers:
            observer.ended()
        return step
