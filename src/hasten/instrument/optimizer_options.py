"""Options under which optimizers step (`fused`, `foreach`), and the script's own beside them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import ref

from hasten.instrument.eager import uncompiled
from hasten.instrument.object_table import Registry, Table, parameters_of
from hasten.modules import own_hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Undo = Callable[[], None]
    Choose = Callable[[Any], Mapping[str, Any] | str]

_identity = object.__hash__  # as `id`, but no audit hook sees it


class OptimizerOptions:
    """What levers choose for the optimizers of the script; several may choose for the same one."""

    def __init__(self, optimizers: Registry) -> None:
        self._optimizers = optimizers
        self._choices: list[Choose] = []
        self._adjusted = Table()
        self._stop: Undo | None = None

    def act(self, choose: Choose) -> Undo:
        """Step each optimizer under what `choose(optimizer)` returns, until the result is called.

        It sees the script's own options, and is asked again when parameters are added, when one
        gets its first gradient, when a weight moves in memory or its gradient has another
        layout, when its state holds other objects, and when a checkpoint has been loaded.
        """
        self._choices.append(choose)
        if self._stop is None:
            old = set(map(id, self._optimizers.known))

            def take(optimizer: Any) -> Undo:
                adjusted = Adjusted(optimizer, self._choices, has_stepped=id(optimizer) in old)
                self._adjusted[optimizer] = adjusted
                return adjusted.release

            self._stop = self._optimizers.act(take)
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

    def _settle(self) -> None:
        for adjusted in self._adjusted.values():
            adjusted.settle()


class Adjusted:
    """One optimizer that steps under other options than its script gave it.

    They are in its groups only while it steps: the dicts may be shared with another
    optimizer, which saves and prints them. Checkpoints, pickles and copies that are made during
    a step, or after one that failed, hold the script's own. A step in which a parameter is
    updated for the first time, also after its state was emptied, is always the script's own: its
    state comes out as the script would have it, and `_fused_sgd` fails where only some momenta
    exist.

    The list of choices is that of all levers, shared and alive. Of an optimizer that has stepped,
    existing gradients have been used.
    """

    def __init__(self, optimizer: Any, choices: list[Choose], *, has_stepped: bool) -> None:
        self._optimizer = ref(optimizer)
        self._choices = choices
        self._chosen: dict[str, Any] = {}
        self._own: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._retyped: list[tuple[dict[str, Any], Any, Any]] = []
        self._unseen: list[Any] = []
        self._shape: tuple[list[int], int, frozenset[int]] | None = None
        self._looked: tuple[list[Any], ...] | None = None
        with own_hooks():
            self._before = optimizer.register_step_pre_hook(self._before_step)
            after = optimizer.register_step_post_hook(self._after_step)
            self._hooks = [
                self._before,
                after,
                optimizer.register_state_dict_post_hook(self._saved, prepend=True),
                optimizer.register_load_state_dict_post_hook(self._loaded),
            ]
        optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)
        self._guards_pickles = "__getstate__" not in vars(optimizer)
        if self._guards_pickles:  # of the instance: pickles and copies do not inherit it
            optimizer.__getstate__ = self._pickled
        if has_stepped:
            self._look_at_states(optimizer)
            if not any(map(_filled, optimizer.state.values())):  # as SGD without momentum
                self._unseen = [p for p in self._unseen if p.grad is None]
            self.settle()

    def settle(self) -> None:
        """Ask every lever again, and step under what they choose from now on."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        self._put_back()
        self._looked = None
        chosen: dict[str, Any] = {}
        for choose in self._choices:
            found = choose(optimizer) or {}
            chosen.update({} if isinstance(found, str) else found)
        if chosen.get("fused"):  # torch uses only one of the two, and its classes differ in which
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
        """Let the fused kernels count steps their way: in float32, on the parameter's device.

        A script in float64 counts in another dtype, and one on a GPU counts on the CPU.
        """
        import torch

        for parameter in parameters_of(optimizer):
            state = optimizer.state.get(parameter) or {}
            step, device = state.get("step"), parameter.device
            if not isinstance(step, torch.Tensor):
                continue
            if step.dtype != torch.float32 or step.device != device:
                self._retyped.append((state, step.device, step.dtype))
                state["step"] = step.to(device, torch.float32)

    def _put_back(self) -> None:
        """Choose nothing, and undo everything that was chosen."""
        optimizer = self._optimizer()
        if optimizer is not None:
            self._give_back(optimizer)
        for state, device, dtype in self._retyped:
            if "step" in state:  # the script may have emptied it, to start over
                state["step"] = state["step"].to(device, dtype)
        self._chosen, self._own, self._retyped = {}, [], []

    def _give_own(self, groups: list[dict[str, Any]]) -> None:
        for group, (own, options) in zip(groups, self._own, strict=False):
            for name, value in own.items():
                if group.get(name) is options[name]:  # otherwise the script has set it meanwhile
                    group[name] = value

    def _look_at_states(self, optimizer: Any) -> None:
        """Note which parameters lack a gradient or state, if groups or states have come or gone."""
        states = optimizer.state
        parameters = parameters_of(optimizer)
        filled = frozenset([id(parameter) for parameter in states if _filled(states[parameter])])
        shape = [*map(id, parameters)], len(states), filled
        if self._shape == shape:
            return
        self._shape = shape
        self._unseen = [p for p in parameters if p.grad is None or not _filled(states.get(p))]

    @uncompiled
    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._give_back(optimizer)  # after a step that failed
        if not self._is_last(optimizer):  # hooks that run later may change gradients
            return
        looks = _looks(optimizer)
        if looks is None or looks != self._looked:
            self._looked = None
            self._look_at_states(optimizer)
        given = (*args[1:], *kwargs.values())
        if self._unseen and self._is_first(optimizer, closes=any(a is not None for a in given)):
            self._put_back()
            self._looked = None
            return
        if self._looked is None:
            self.settle()
            self._looked = _looks(optimizer)
        if self._chosen:
            for group in optimizer.param_groups:
                options = {name: v for name, v in self._chosen.items() if name in group}
                self._own.append(({name: group[name] for name in options}, options))
                group.update(options)

    @uncompiled
    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self._own and self._chosen.get("fused"):
            _count_writes(optimizer)
        self._give_back(optimizer)
        if not self._is_last(optimizer):
            optimizer._optimizer_step_pre_hooks.move_to_end(self._before.id)

    def _is_last(self, optimizer: Any) -> bool:
        """Return whether no hook of the script runs between ours and the step."""
        return bool(next(reversed(optimizer._optimizer_step_pre_hooks), None) == self._before.id)

    def _give_back(self, optimizer: Any) -> None:
        if self._own:
            self._give_own(optimizer.param_groups)
            self._own = []

    def _is_first(self, optimizer: Any, *, closes: bool) -> bool:
        """Return whether a parameter is updated for the first time in this step.

        A step that closes has a closure, which may bring gradients that are not there yet.
        """
        state = optimizer.state
        known = [p for p in self._unseen if p.grad is not None]
        if known:
            self._unseen = [p for p in self._unseen if p.grad is None]
            self._looked = None
        comes = closes and any(p.requires_grad for p in self._unseen)
        return comes or not all(_filled(state.get(p)) for p in known)

    def _saved(self, optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
        """Let a checkpoint hold what it would have held without levers."""
        self._give_own(saved["param_groups"])
        saved["state"] = _own_states(saved["state"], self._retyped)
        return saved

    def _loaded(self, optimizer: Any) -> None:
        """Treat the options of the checkpoint as the script's own, since now they are."""
        self._chosen, self._own, self._retyped = {}, [], []
        self._shape = self._looked = None

    def _pickled(self) -> dict[str, Any]:
        optimizer = self._optimizer()
        kind: Any = type(optimizer)
        # The script's class may return its very attributes, our hooks among them.
        state = dict(kind.__getstate__(optimizer))
        state.pop("__getstate__", None)
        ours = {hook.id for hook in self._hooks}
        for name, value in state.items():
            if name.endswith("_hooks") and isinstance(value, dict):
                state[name] = type(value)((k, v) for k, v in value.items() if k not in ours)
        if self._own and "param_groups" in state:
            state["param_groups"] = [dict(group) for group in state["param_groups"]]
            self._give_own(state["param_groups"])
        if "state" in state:
            state["state"] = _own_states(state["state"], self._retyped)
        return state


def _count_writes(optimizer: Any) -> None:
    """Count an update in the version of each weight, as fused kernels do not."""
    from torch.autograd.graph import increment_version

    written = [p for p in parameters_of(optimizer) if p.grad is not None]
    try:
        increment_version(written)
    except TypeError:  # older than torch 2.6: one at a time
        for weight in written:
            increment_version(weight)


def _own_states(states: Any, retyped: list[tuple[dict[str, Any], Any, Any]]) -> Any:
    """Return `states`, with what was retyped turned back to the script's types."""
    if not retyped:
        return states
    types = {id(state): (device, dtype) for state, device, dtype in retyped}
    own = type(states)(dict) if hasattr(states, "default_factory") else {}
    for key, state in states.items():
        kind = types.get(id(state))
        if kind is None or "step" not in state:
            own[key] = state
        else:
            own[key] = {**state, "step": state["step"].to(*kind)}
    return own


def _filled(state: Any) -> bool:
    """Return whether an update has left something in the state of a parameter."""
    if not isinstance(state, dict):  # the script's own optimizers may keep counters there
        return False
    return any(value is not None for value in state.values())


def _looks(optimizer: Any) -> tuple[list[Any], ...] | None:
    """Return all that decides on the options: where it is the same, nothing needs a second look.

    A script may assign a weight new memory (`p.data = ...`), a gradient or a moment at any time.
    The fused kernels walk over them in step, whatever their strides. A step of many small
    parameters may take less than one look-up of each of their states, so nearly all of this is
    one call in C for all of them. None where it cannot be read that way.
    """
    import torch

    weights = parameters_of(optimizer)
    states = optimizer.state
    held = [*states.values()]
    # Classes without a fused form may have new tensors in each step.
    kept = held if "fused" in optimizer.defaults else []
    try:
        return (
            [*map(_identity, weights)],
            [*map(torch.Tensor.data_ptr, weights)],
            [*map(torch.Tensor.numel, weights)],
            [*map(torch.Tensor.stride, weights)],
            [*map(_gradient_layout, weights)],
            [*map(_identity, states)],
            [*map(len, held)],
            [*map(_identity, chain.from_iterable(map(dict.values, kept)))],
        )
    except (RuntimeError, TypeError):  # no strides or address; states that are no dicts
        return None


def _gradient_layout(weight: Any) -> Any:
    """Return the strides of a gradient; one that is not there disturbs no kernel."""
    gradient = weight.grad
    if gradient is None:
        return weight.stride()
    return None if gradient.is_sparse else gradient.stride()
