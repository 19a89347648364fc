"""Where the loop calls the levers: at phases, calls of root modules, loaders and transfers."""

from __future__ import annotations

from bisect import insort
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hasten.instrument.object_table import Registry, Table
from hasten.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    Undo = Callable[[], None]


def join(levers: list[Any], lever: Any, changed: Callable[[], None] = lambda: None) -> Undo:
    """Add a lever's callback until the result is called; `changed` is called both times."""
    levers.append(lever)
    changed()

    def undo() -> None:
        levers.remove(lever)
        changed()

    return undo


class PhaseCallbacks:
    """Levers that are told of the phases of the loop.

    Attributes:
        enterers: called with the phase that begins; what they return is called at its end.
    """

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

    Args:
        phases: the levers that are told of a call as of a phase.

    Attributes:
        callers: levers that make the calls, the innermost first, each paired with its depth.
        inside: one cell: whether a call is running. The modules that it calls are not roots.
    """

    def __init__(self, phases: PhaseCallbacks) -> None:
        super().__init__()
        self.callers: list[tuple[int, Callable[[Any, Any, Any, Any], Any]]] = []
        self.inside = [False]
        self._phases = phases
        self._refusing = Table()

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
        if module in self:
            return True
        if module in self._refusing:
            return False
        try:
            lazy = _is_lazy(module)
        except Exception:
            self._refusing[module] = None
            return False
        if not lazy:
            self.add(module)
        return not lazy

    def call(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Make a root call, through the levers that want to."""
        self.inside[0] = True
        try:
            if self._phases.enterers:
                within = self._phases.within
                return within(Phase.FORWARD, self._call, original, module, args, kwargs)
            if self.callers:
                return self._call(original, module, args, kwargs)
            return original(module, *args, **kwargs)
        finally:
            self.inside[0] = False

    def call_plainly(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Make a root call without the levers."""
        self.inside[0] = True
        try:
            return original(module, *args, **kwargs)
        finally:
            self.inside[0] = False

    def _call(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        def call(args: Any, kwargs: Any) -> Any:
            return original(module, *args, **kwargs)

        made: Any = call
        for _, around in self.callers:
            made = partial(around, module, made)
        return made(args, kwargs)


def _is_lazy(module: Any) -> bool:
    """Return whether parameters or buffers get their shape at the first call.

    A module that has no hash, or other attributes by these names, may raise any exception.
    """
    from torch.nn.parameter import is_lazy

    iter(module.modules())
    return any(map(is_lazy, module.parameters())) or any(map(is_lazy, module.buffers()))
