"""Steps of optimizers whose gradients are of no use, and which therefore change nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hasten.instrument.lever_calls import join
from hasten.instrument.object_table import parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Undo = Callable[[], None]


class Updates:
    """Levers that may withhold the gradients of a step.

    Attributes:
        step_count: steps of which a lever knew whether their gradients were of use.
        replaced: the gradients of the step that begins next are not those of the script.
    """

    def __init__(self) -> None:
        self.step_count = 0
        self.replaced = False
        self._judges: list[Callable[..., Any]] = []
        self._useless: dict[Any, Any] = {}  # by device: numbers of two cannot be added

    @property
    def useless_count(self) -> int:
        """Steps whose gradients were of no use; on an accelerator this waits for its answer."""
        return sum(map(int, self._useless.values()))

    def judge(self, judge: Callable[..., Any]) -> Undo:
        """Ask `judge(optimizer, has_closure=...)` before each step, until the result is called."""
        return join(self._judges, judge)

    def begin(self, optimizer: Any, given: tuple[Any, ...]) -> tuple[Undo, ...]:
        """Withhold the gradients of a step, if a lever says so; return what ends that.

        Where torch's kernel can look at the answer itself, the host need not wait for it.
        Otherwise the step does not see the gradients, which every optimizer takes for none.

        Args:
            optimizer: that steps.
            given: what the script handed to `step`.
        """
        replaced, self.replaced = self.replaced, False
        if not self._judges:
            return ()
        has_closure = any(callable(one) for one in given)
        answers = [judge(optimizer, has_closure=has_closure) for judge in self._judges]
        useless = next((answer for answer in answers if answer is not None), None)
        if useless is None:
            return ()
        self.step_count += 1
        if getattr(optimizer, "_step_supports_amp_scaling", False) and not replaced:
            self._count(useless, useless.device)
            optimizer.found_inf = useless
            return (partial(vars(optimizer).pop, "found_inf", None),)
        is_useless = bool(useless)
        self._count(is_useless)
        return (_hide(optimizer),) if is_useless and not replaced else ()

    def _count(self, useless: Any, device: Any = None) -> None:
        self._useless[device] = self._useless.get(device, 0) + useless


def _hide(optimizer: Any) -> Undo:
    hidden = [
        (parameter, parameter.grad)
        for parameter in parameters_of(optimizer)
        if parameter.grad is not None
    ]
    for parameter, _ in hidden:
        parameter.grad = None

    def show() -> None:
        for parameter, gradient in hidden:
            if parameter.grad is None:
                parameter.grad = gradient

    return show
