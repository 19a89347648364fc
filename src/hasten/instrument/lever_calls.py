"""Where the loop calls the levers: phases, root calls, loaders, transfers, steps of optimizers."""

from __future__ import annotations

from bisect import insort
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hasten.instrument.object_table import Registry, parameters_of
from hasten.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    Undo = Callable[[], None]


def join(levers: list[Any], lever: Any) -> Undo:
    """Add a lever's callback until the result is called."""
    levers.append(lever)
    return lambda: levers.remove(lever)


class PhaseCallbacks:
    """Levers that are told of the phases of the loop; what they return is called at its end."""

    def __init__(self) -> None:
        self.enterers: list[Callable[[Phase], Undo | None]] = []

    def enter(self, phase: Phase) -> tuple[Undo, ...]:
        """Tell the levers that a phase begins; what is returned must be called when it ends."""
        if not self.enterers:
            return ()
        leaves = [enter(phase) for enter in self.enterers]
        return tuple(leave for leave in reversed(leaves) if leave is not None)

    def within(self, phase: Phase, act: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `act` in a phase, and tell the levers of it."""
        leaves = self.enter(phase)
        try:
            return act(*args, **kwargs)
        finally:
            for leave in leaves:
                leave()


class SeamAnswers:
    """Levers that answer in torch's place; if there are several for one call, the first does."""

    def __init__(self) -> None:
        self.makers: list[Callable[[Any, Callable[[], Any]], Any]] = []
        self.advancers: list[Callable[[Any, Any], Any]] = []
        self.movers: list[Callable[[Any, Any, Any, Any], Any]] = []

    def make(self, original: Any, loader: Any) -> Any:
        """Make the iterator of a pass, through a lever if one wants to."""
        for make in self.makers:
            return make(loader, lambda: original(loader))
        return original(loader)

    def advance(self, original: Any, iterator: Any) -> Any:
        """Fetch the next batch, through a lever if one wants to."""
        for advance in self.advancers:
            return advance(original, iterator)
        return original(iterator)

    def move(self, original: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
        """Answer a `Tensor.to` or `Tensor.cuda`, through a lever if one wants to."""
        for convert in self.movers:
            return convert(original, tensor, args, kwargs)
        return original(tensor, *args, **kwargs)


class RootModules(Registry):
    """The modules that the script itself calls, and what levers do to these calls.

    Attributes:
        callers: levers that make the calls, the innermost first, each paired with its depth.
        inside: one cell: whether a call is running. The modules that it calls are not roots.
        looked_into: someone needs `inside`, though no lever does anything to the calls.
    """

    def __init__(self, phases: PhaseCallbacks) -> None:
        super().__init__()
        self.callers: list[tuple[int, Callable[[Any, Any, Any, Any], Any]]] = []
        self.inside = [False]
        self.looked_into = False
        self._phases = phases

    @property
    def wanted(self) -> bool:
        """Whether a lever does anything to root calls, or someone looks into them."""
        return bool(self.looked_into or self.callers or self._applied or self._phases.enterers)

    def on_call(self, around: Callable[[Any, Any, Any, Any], Any], innermost: int) -> Undo:
        """Let `around(module, call, args, kwargs)` make each root call."""
        entry = (-innermost, around)
        insort(self.callers, entry, key=itemgetter(0))
        return lambda: self.callers.remove(entry)

    def meet(self, module: Any) -> bool:
        """Register a root at its first call; return whether levers may act on it.

        They may not on a lazy module that has not been called, whose parameters have no shape
        yet, nor on one that cannot be asked for its parts.
        """
        if module not in self and _can_be_asked(module):
            self.add(module)
        return module in self

    def call(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Make a root call, through the levers that want to if they may."""
        self.inside[0] = True
        try:
            if module not in self or not (self.callers or self._phases.enterers):
                return original(module, *args, **kwargs)
            within = self._phases.within
            return within(Phase.FORWARD, self._call, original, module, args, kwargs)
        finally:
            self.inside[0] = False

    def _call(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        def call(args: Any, kwargs: Any) -> Any:
            return original(module, *args, **kwargs)

        made: Any = call
        for _, around in self.callers:
            made = partial(around, module, made)
        return made(args, kwargs)


def _can_be_asked(module: Any) -> bool:
    """Return whether a module shows its parts, and these have their shape.

    A module that has no hash, or other attributes by these names, may raise any exception.
    """
    from torch.nn.parameter import is_lazy

    try:
        iter(module.modules())
        return not any(map(is_lazy, (*module.parameters(), *module.buffers())))
    except Exception:
        return False


class Updates:
    """Levers that may withhold the gradients of a step, which then changes nothing.

    Attributes:
        judges: those levers.
        step_count: steps of which a lever knew whether their gradients were of use.
        replaced: the gradients of the step that begins next are not those of the script.
    """

    def __init__(self) -> None:
        self.step_count = 0
        self.replaced = False
        self.judges: list[Callable[..., Any]] = []
        self._useless: dict[Any, Any] = {}  # by device: numbers of two cannot be added

    @property
    def useless_count(self) -> int:
        """Steps whose gradients were of no use; on an accelerator this waits for its answer."""
        return sum(map(int, self._useless.values()))

    def begin(self, optimizer: Any, given: tuple[Any, ...]) -> tuple[Undo, ...]:
        """Withhold the gradients of a step, if a lever says so; return what ends that.

        Where torch's kernel can look at the answer itself, the host need not wait for it.
        Otherwise the step does not see the gradients, which every optimizer takes for none.
        """
        replaced, self.replaced = self.replaced, False
        if not self.judges:
            return ()
        has_closure = any(callable(one) for one in given)
        answers = [judge(optimizer, has_closure=has_closure) for judge in self.judges]
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
