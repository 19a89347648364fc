"""The live objects of the script, as levers see them (the protocol `lever.Training`)."""

from __future__ import annotations

import operator
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any

from hasten.instrument.late_imports import stand_in_later
from hasten.instrument.object_table import Registry, Table
from hasten.instrument.optimizer_options import OptimizerOptions
from hasten.instrument.stand_ins import StandIns
from hasten.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Undo = Callable[[], None]
    Apply = Callable[[Any], Undo | None]
    Convert = Callable[[Any], Any]


class LiveTraining:
    """What the child offers to levers: optimizers, root modules, their calls and loaders.

    Args:
        in_loop: whether this is the thread of the loop, and torch does not compile.
    """

    def __init__(self, in_loop: Callable[[], bool] = lambda: True) -> None:
        self._stand_ins = StandIns(in_loop)
        self.optimizers = Registry()
        self._options = OptimizerOptions(self.optimizers)
        self.roots = Registry()
        self._choosers: list[Callable[[Any], Convert | None]] = []
        self._converters = Table()
        self._refusing = Table()
        self.callers: list[Callable[[Any, Any, Any, Any], Any]] = []
        self._depths: list[int] = []
        self.makers: list[Callable[[Any, Callable[[], Any]], Any]] = []
        self.advancers: list[Callable[[Any, Any], Any]] = []
        self.movers: list[Callable[[Any, Any, Any, Any], Any]] = []
        self.enterers: list[Callable[[Phase], Undo | None]] = []
        self.seams_wanted: Callable[[], None] = lambda: None
        self._settings: list[Callable[[], Undo | None]] = []
        self.begun = False
        self.before_training: Callable[[], None] = lambda: None
        self.trial = False
        self.paused_s = 0.0
        self.at_once = False
        self.assumed: frozenset[str] = frozenset()
        self.compile_s = 0.0
        self._first_passes: list[Callable[[], tuple[float, float]]] = []

    def on_optimizer(self, apply: Apply) -> Undo:
        """Apply `apply` to each optimizer right before its first step."""
        return self.optimizers.act(apply)

    def on_options(self, choose: Callable[[Any], Any]) -> Undo:
        """Step each optimizer under the options that `choose(optimizer)` returns."""
        return self._options.act(choose)

    def on_root(self, apply: Apply) -> Undo:
        """Apply `apply` to each root module right before its next call."""
        return self.roots.act(apply)

    def on_inputs(self, choose: Callable[[Any], Convert | None]) -> Undo:
        """Pass the tensors that a root is called with through what `choose(root)` returns."""
        self._choosers.append(choose)
        self._converters.clear()

        def undo() -> None:
            self._choosers.remove(choose)
            self._converters.clear()

        return undo

    def meet(self, module: Any) -> tuple[Convert, ...] | None:
        """Take a root in at its first call; return what its tensors are passed through.

        None for a lazy module that has not been called: its parameters have no shape yet. None
        as well for one that cannot be asked for its parts; a lever could not either.
        """
        found: tuple[Convert, ...] | None = self._converters.get(module)
        if found is None:
            if module in self._refusing:
                return None
            if module not in self.roots:
                try:
                    lazy = _is_lazy(module)
                except Exception:
                    self._refusing[module] = None
                    return None
                if lazy:
                    return None
                self.roots.add(module)
            chosen = [choose(module) for choose in self._choosers]
            found = tuple(convert for convert in chosen if convert is not None)
            self._converters[module] = found
        return found

    def on_call(self, around: Callable[[Any, Any, Any, Any], Any], *, innermost: int = 0) -> Undo:
        """Let `around(module, call, args, kwargs)` make each root call."""
        self._depths.append(-innermost)
        self._depths.sort()
        place = bisect_right(self._depths, -innermost) - 1
        self.callers.insert(place, around)

        def undo() -> None:
            self.callers.remove(around)
            self._depths.remove(-innermost)

        return undo

    def compiled(self, spent_s: float) -> None:
        """Note seconds that went into compiling."""
        self.compile_s += spent_s

    def on_first_pass(self, cost_s: Callable[[], tuple[float, float]]) -> None:
        """Ask `cost_s()` what the data of a trial costs once."""
        self._first_passes.append(cost_s)

    @property
    def first_pass_s(self) -> tuple[float, float]:
        """Seconds that a first pass takes longer than later ones, and what stood for it here."""
        costs_s = [cost_s() for cost_s in self._first_passes]
        return sum(longer_s for longer_s, _ in costs_s), sum(held_s for _, held_s in costs_s)

    def excuse(self, error: Exception) -> None:
        """Raise what made a lever give up: nobody is there to take an excuse."""
        raise error

    def on_phase(self, enter: Callable[[Phase], Undo | None]) -> Undo:
        """Call `enter(phase)` as the loop goes into FORWARD, BACKWARD or OPTIMIZER."""
        self.enterers.append(enter)
        self.seams_wanted()

        def undo() -> None:
            self.enterers.remove(enter)
            self.seams_wanted()

        return undo

    def enter(self, phase: Phase) -> tuple[Undo, ...]:
        """Tell the levers of a phase; what is returned has to be called on the way out."""
        if not self.enterers:
            return ()
        leaves = [enter(phase) for enter in self.enterers]
        return tuple(leave for leave in reversed(leaves) if leave is not None)

    def within(self, phase: Phase, act: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `act` in a phase of which the levers are told."""
        leaves = self.enter(phase)
        try:
            return act(*args, **kwargs)
        finally:
            for leave in leaves:
                leave()

    def call(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Make a root call, by the levers that want to."""
        if self.enterers:
            return self.within(Phase.FORWARD, self._call, original, module, args, kwargs)
        if self.callers:
            return self._call(original, module, args, kwargs)
        return original(module, *args, **kwargs)

    def _call(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        def call(args: Any, kwargs: Any) -> Any:
            return original(module, *args, **kwargs)

        made: Any = call
        for around in self.callers:
            made = partial(around, module, made)
        return made(args, kwargs)

    def on_function(self, owner: Any, name: str, answer: Callable[..., Any]) -> Undo:
        """Let `answer(original, *args, **kwargs)` stand in for the function `owner.name`.

        An owner that is the name of a module need not be there yet, and `name` may have dots;
        there it is asked in every thread.
        """
        if isinstance(owner, str):
            return stand_in_later(owner, name, answer)
        return self._stand_ins.add(owner, name, answer)

    def on_loader(self, make: Callable[[Any, Callable[[], Any]], Any]) -> Undo:
        """Let `make(loader, stock)` build the iterator of each DataLoader."""
        self.makers.append(make)
        return lambda: self.makers.remove(make)

    def make(self, original: Any, loader: Any) -> Any:
        """Make the iterator of a pass, by a lever where one wants to."""
        for make in self.makers:
            return make(loader, lambda: original(loader))
        return original(loader)

    def on_next(self, advance: Callable[[Any, Any], Any]) -> Undo:
        """Let `advance(original, iterator)` fetch the next batch of each loader iterator."""
        self.advancers.append(advance)
        return lambda: self.advancers.remove(advance)

    def advance(self, original: Any, iterator: Any) -> Any:
        """Fetch the next batch, by a lever where one wants to."""
        for advance in self.advancers:
            return advance(original, iterator)
        return original(iterator)

    def on_transfer(self, convert: Callable[[Any, Any, Any, Any], Any]) -> Undo:
        """Let `convert(original, tensor, args, kwargs)` answer `Tensor.to` and `Tensor.cuda`."""
        self.movers.append(convert)
        self.seams_wanted()

        def undo() -> None:
            self.movers.remove(convert)
            self.seams_wanted()

        return undo

    def move(self, original: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
        """Answer a `Tensor.to` or `Tensor.cuda`, by a lever where one wants to."""
        for convert in self.movers:
            return convert(original, tensor, args, kwargs)
        return original(tensor, *args, **kwargs)

    def on_training(self, apply: Callable[[], Undo | None]) -> Undo:
        """Apply `apply` now, and again when training starts, after the script's own settings."""
        undo: list[Undo | None] = [apply()]

        def again() -> None:
            undo[0] = apply() or undo[0]

        if not self.begun:
            self._settings.append(again)

        def undo_both() -> None:
            if again in self._settings:
                self._settings.remove(again)
            if undo[0] is not None:
                undo[0]()

        return undo_both

    def begins(self) -> None:
        """Training starts: settle what the script may have set itself meanwhile."""
        if not self.begun:
            self.begun = True
            self.before_training()
            for again in self._settings:
                again()
            self._settings.clear()


def _is_lazy(module: Any) -> bool:
    """Return whether parameters or buffers wait for the first call to get a shape.

    Any exception may come out of a module that has no hash, or something else by these names.
    """
    from torch.nn.parameter import is_lazy

    iter(module.modules())
    return any(map(is_lazy, module.parameters())) or any(map(is_lazy, module.buffers()))


def convert(converters: Sequence[Convert], value: Any) -> Any:
    """Pass the tensors in `value` through every converter.

    A container is kept where nothing in it changed: modules may write into their inputs.
    """
    import torch

    if isinstance(value, torch.Tensor):
        for through in converters:
            value = through(value)
        return value
    if type(value) in (list, tuple):
        parts = [convert(converters, part) for part in value]
        return value if all(map(operator.is_, parts, value)) else type(value)(parts)
    if type(value) is dict:
        items = {name: convert(converters, part) for name, part in value.items()}
        return value if all(items[name] is value[name] for name in value) else items
    return value
