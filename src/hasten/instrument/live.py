"""The live objects of the script, as levers see them (the protocol `lever.Training`)."""

from __future__ import annotations

import operator
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from hasten.instrument.late_imports import stand_in_later
from hasten.instrument.object_table import Table
from hasten.instrument.stand_ins import StandIns
from hasten.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Undo = Callable[[], None]
    Apply = Callable[[Any], Undo | None]
    Convert = Callable[[Any], Any]
    Choose = Callable[[Any], Mapping[str, Any] | None]


class Registry:
    """Objects of one kind, and what levers do to each of them, old and new."""

    def __init__(self) -> None:
        self.known = Table()
        self._applied: dict[int, tuple[Apply, Table]] = {}
        self._serial = 0

    def __contains__(self, item: Any) -> bool:
        return item in self.known

    def add(self, item: Any) -> None:
        """Take in an object, and let every lever act on it."""
        self.known[item] = None
        for apply, undos in self._applied.values():
            undos[item] = apply(item)

    def act(self, apply: Apply) -> Undo:
        """Apply `apply` to every object, now and later; the result undoes all of it."""
        self._serial += 1
        serial = self._serial
        undos = Table()
        self._applied[serial] = (apply, undos)
        for item in self.known:
            undos[item] = apply(item)

        def undo() -> None:
            del self._applied[serial]
            for one in undos.values():
                if one is not None:
                    one()

        return undo


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


# ---- options under which optimizers step (`fused`, `foreach`), and the script's own beside them


class OptimizerOptions:
    """What levers choose for the optimizers of the script; several may choose for the same one.

    Args:
        optimizers: those that have stepped, or are about to.
    """

    def __init__(self, optimizers: Registry) -> None:
        self._optimizers = optimizers
        self._choices: list[Choose] = []
        self._adjusted = Table()
        self._stop: Undo | None = None

    def act(self, choose: Choose) -> Undo:
        """Step each optimizer under what `choose(optimizer)` returns, until the result is called.

        It sees the script's own options, and is asked again when parameters come in, when one
        gets its first gradient, when a weight lies elsewhere in memory or its gradient in another
        order, when other objects are in its state, and when a checkpoint was loaded.
        """
        self._choices.append(choose)
        if self._stop is None:
            old = set(map(id, self._optimizers.known))
            self._stop = self._optimizers.act(
                lambda new: self._take(new, has_stepped=id(new) in old)
            )
            old.clear()
        else:
            self._settle()

        def undo() -> None:
            self._choices.remove(choose)
            if self._choices:
                self._settle()
            elif self._stop is not None:
                self._stop()
                self._stop = None
                self._adjusted.clear()

        return undo

    def _take(self, optimizer: Any, *, has_stepped: bool) -> Undo:
        adjusted = Adjusted(optimizer, self._choices, has_stepped=has_stepped)
        self._adjusted[optimizer] = adjusted
        return adjusted.release

    def _settle(self) -> None:
        for adjusted in self._adjusted.values():
            adjusted.settle()


class Adjusted:
    """One optimizer that steps under other options than its script gave it.

    They are in its groups while it steps, and no longer: the dicts may be those of another
    optimizer too, which saves and prints them. Checkpoints, pickles and copies that are made within
    a step, or after one that failed, hold the script's own. A step in which a parameter is
    updated for the first time, or since its state was emptied, is always the script's own: its
    state comes out as the script would have it, and `_fused_sgd` fails where only some momenta
    exist.

    Args:
        optimizer: whose options they are.
        choices: what the levers choose; the list of all, shared and alive.
        has_stepped: whether it did, so that gradients that are there have been used.
    """

    def __init__(self, optimizer: Any, choices: list[Choose], *, has_stepped: bool) -> None:
        self._optimizer = ref(optimizer)
        self._choices = choices
        self._chosen: dict[str, Any] = {}
        self._own: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._retyped: list[tuple[dict[str, Any], Any, Any]] = []
        self._unseen: list[Any] = []
        self._shape: tuple[int, int, frozenset[int]] | None = None
        self._places: list[Any] | None = None
        self._waits = True
        self._before = optimizer.register_step_pre_hook(self._before_step)
        after = optimizer.register_step_post_hook(self._after_step)
        optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)
        self._hooks = [
            self._before,
            after,
            optimizer.register_state_dict_post_hook(self._saved, prepend=True),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]
        self._guards_pickles = "__getstate__" not in vars(optimizer)
        if self._guards_pickles:  # of the instance: pickles and copies do not inherit it
            optimizer.__getstate__ = self._pickled
        if has_stepped:
            self._look_at_states(optimizer)
            if not any(map(_filled, optimizer.state.values())):  # as SGD without momentum
                self._unseen = [p for p in self._unseen if p.grad is None]
            self.settle()

    def settle(self) -> None:
        """Ask every lever anew, and step under what they choose from now on."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        self._put_back()
        self._waits = False
        self._places = _places(optimizer)
        chosen: dict[str, Any] = {}
        for choose in self._choices:
            chosen.update(choose(optimizer) or {})
        if chosen.get("fused"):  # torch takes one of them at a time, not all in the same order
            chosen["foreach"] = False
            self._retype(optimizer)
        self._chosen = chosen

    def release(self) -> None:
        """Leave the optimizer as the script has it."""
        self._put_back()
        for hook in self._hooks:
            hook.remove()
        optimizer = self._optimizer()
        if optimizer is not None and self._guards_pickles:
            vars(optimizer).pop("__getstate__", None)

    def _retype(self, optimizer: Any) -> None:
        """Let the fused kernels count steps as they do: in float32, where the parameter is.

        A script in float64 counts otherwise, and one on a GPU counts on the CPU.
        """
        import torch

        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state.get(parameter) or {}
                step, device = state.get("step"), parameter.device
                if not isinstance(step, torch.Tensor):
                    continue
                if step.dtype != torch.float32 or step.device != device:
                    self._retyped.append((state, step.device, step.dtype))
                    state["step"] = step.to(device, torch.float32)

    def _put_back(self) -> None:
        """Choose nothing, and leave nothing of what was chosen."""
        optimizer = self._optimizer()
        if optimizer is not None:
            self._give_back(optimizer)
        for state, device, dtype in self._retyped:
            state["step"] = state["step"].to(device, dtype)
        self._chosen, self._own, self._retyped = {}, [], []

    def _give_own(self, groups: list[dict[str, Any]]) -> None:
        for group, (own, options) in zip(groups, self._own, strict=False):
            for name, value in own.items():
                if group.get(name) is options[name]:  # else the script has set it meanwhile
                    group[name] = value

    def _look_at_states(self, optimizer: Any) -> None:
        """Note who has no gradient or no state yet, where groups or states have come or gone."""
        groups, states = optimizer.param_groups, optimizer.state
        filled = frozenset([id(parameter) for parameter in states if _filled(states[parameter])])
        shape = len(groups), len(states), filled
        if self._shape == shape:
            return
        self._shape = shape
        parameters = (p for group in groups for p in group["params"])
        self._unseen = [p for p in parameters if p.grad is None or not _filled(states.get(p))]
        self._waits = True

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._give_back(optimizer)  # after a step that failed
        if not self._is_last(optimizer):  # what comes behind may change gradients
            return
        self._look_at_states(optimizer)
        given = (*args[1:], *kwargs.values())
        if self._unseen and self._is_first(optimizer, closes=any(a is not None for a in given)):
            self._put_back()
            self._waits = True
            return
        if self._waits or self._places != _places(optimizer):
            self.settle()
        if self._chosen:
            for group in optimizer.param_groups:
                options = {name: v for name, v in self._chosen.items() if name in group}
                self._own.append(({name: group[name] for name in options}, options))
                group.update(options)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self._give_back(optimizer)
        if not self._is_last(optimizer):
            optimizer._optimizer_step_pre_hooks.move_to_end(self._before.id)

    def _is_last(self, optimizer: Any) -> bool:
        """Return whether no hook of the script comes between ours and the step."""
        return bool(next(reversed(optimizer._optimizer_step_pre_hooks), None) == self._before.id)

    def _give_back(self, optimizer: Any) -> None:
        if self._own:
            self._give_own(optimizer.param_groups)
            self._own = []

    def _is_first(self, optimizer: Any, *, closes: bool) -> bool:
        """Return whether a parameter is updated for the first time in this step.

        Args:
            optimizer: that steps.
            closes: whether a closure may bring gradients that are not there yet.
        """
        state = optimizer.state
        known = [p for p in self._unseen if p.grad is not None]
        if known:
            self._unseen = [p for p in self._unseen if p.grad is None]
            self._waits = True
        comes = closes and any(p.requires_grad for p in self._unseen)
        return comes or not all(_filled(state.get(p)) for p in known)

    def _saved(self, optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
        """Let a checkpoint say what it would have said."""
        self._give_own(saved["param_groups"])
        saved["state"] = self._own_state(saved["state"])
        return saved

    def _own_state(self, states: Any) -> Any:
        """Return `states`, with what was retyped as the script has it."""
        if not self._retyped:
            return states
        types = {id(state): (device, dtype) for state, device, dtype in self._retyped}
        own = type(states)(dict) if hasattr(states, "default_factory") else {}
        for key, state in states.items():
            kind = types.get(id(state))
            own[key] = state if kind is None else {**state, "step": state["step"].to(*kind)}
        return own

    def _loaded(self, optimizer: Any) -> None:
        """Take the options of the checkpoint for the script's own, for they are now."""
        self._chosen, self._own, self._retyped = {}, [], []
        self._shape = None

    def _pickled(self) -> dict[str, Any]:
        optimizer = self._optimizer()
        kind: Any = type(optimizer)
        state: dict[str, Any] = kind.__getstate__(optimizer)
        state["param_groups"] = [dict(group) for group in state["param_groups"]]
        self._give_own(state["param_groups"])
        state["state"] = self._own_state(state["state"])
        return state


def _filled(state: Any) -> bool:
    """Return whether an update has left something in the state of a parameter."""
    return any(value is not None for value in state.values()) if state else False


def _places(optimizer: Any) -> list[Any] | None:
    """Return where weights lie in memory, whether gradients lie as they do, and their states.

    A script may give a weight other memory (`p.data = ...`), a gradient or a moment of its own at
    any time. The fused kernels walk over them side by side, whatever their strides say.
    """
    import torch

    found: list[Any] = []
    states = optimizer.state
    try:
        for group in optimizer.param_groups:
            fuses = "fused" in group
            for weight in group["params"]:
                gradient = weight.grad
                alike = gradient is None or (
                    gradient.layout is torch.strided and gradient.stride() == weight.stride()
                )
                found.append((weight.data_ptr(), weight.numel(), alike))
                if fuses and weight in states:  # others have new tensors in each step
                    found.extend(map(id, states[weight].values()))
    except RuntimeError:  # a weight without strides or an address: no lever chooses for such
        return None
    return found
