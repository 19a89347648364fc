"""What a forked process has a copy of: attributes of a model, and variables that its code reads."""

from __future__ import annotations

import sys
from collections import deque
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.modules import weights_of
from hasten.root_calls.model_code import is_library, model_code, named_in
from hasten.root_calls.ranks.weights import others_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.root_calls.model_code import Variable

_CODE = (FunctionType, BuiltinFunctionType, MethodType, type, ModuleType)
_TRAINING = "training"
_LARGE_COUNT = 1000
_ABSENT = object()


class HeldState:
    """Tells whether a model is what it was at the fork, but for its values.

    What is watched: attributes of its submodules and their classes, containers and plain objects
    among them, which weights require gradients and how they lie in memory, and the variables that
    its code reads. The model is not kept alive.
    """

    def __init__(self, module: Any) -> None:
        submodules = list(module.modules())
        kinds = {kind for part in submodules for kind in type(part).__mro__}
        own_kinds = [vars(kind) for kind in kinds if not is_library(kind.__module__)]
        self._submodules = [vars(part) for part in submodules]
        self._variables = _variables_of(module)
        read = {name: space[name] for space, name in self._variables}
        inside = _spaces_in([*self._submodules, read])
        self._spaces = [*self._submodules, *own_kinds, *inside, *_spaces_in(inside)]
        self.tensors = [*weights_of(module), *others_in(module)]
        known = set(map(id, self.tensors))
        self._others = [one for one in self._now() if _is_tensor(one) and id(one) not in known]
        self.accept()
        self.unwatchable = self._unwatchable({id(part) for part in submodules})

    def _unwatchable(self, known: set[int]) -> str:
        import torch

        for value in self._values:
            if isinstance(value, torch.Generator):
                return "the model has a random generator of its own"
            is_other = isinstance(value, torch.nn.Module) and id(value) not in known
            if is_other and next(weights_of(value), None) is not None:
                return "the model uses another that is not part of it"
        return ""

    @property
    def arrays(self) -> list[Any]:
        """The arrays of NumPy among what is watched."""
        kind = "numpy", "ndarray"  # which need not be imported
        values = self._values
        return [one for one in values if (type(one).__module__, type(one).__name__) == kind]

    @property
    def training(self) -> tuple[bool, ...]:
        """Whether each submodule is in training mode."""
        return tuple(part[_TRAINING] for part in self._submodules)

    @property
    def has_other_training(self) -> bool:
        """Whether other submodules are in training mode than before."""
        return self.training != self._flags

    def accept(self) -> None:
        """Take the state as it is now for the one to compare with."""
        self._values, self._forms, self._flags = self._now(), self._forms_now(), self.training
        self._writes = self._writes_now()

    def changed(self) -> str:
        """Say what has changed beside values and training modes; empty for nothing."""
        if self._forms_now() != self._forms:
            return "which weights require gradients, their layout, or how torch computes"
        if self._writes_now() != self._writes:
            return "a tensor that is no weight"
        now = self._now()
        if len(now) == len(self._values) and all(map(is_, now, self._values)):
            return ""
        pairs = zip(self._names(), self._values, now, strict=False)
        others = (name for name, old, new in pairs if old is not new and name)
        return next(others, "" if len(now) == len(self._values) else "an attribute")

    def _now(self) -> list[Any]:
        found: list[Any] = []
        for space in self._spaces:
            found += space if isinstance(space, (list, set, deque)) else space.values()
        found += [space.get(name, _ABSENT) for space, name in self._variables]
        return found

    def _forms_now(self) -> list[Any]:
        import torch

        found: list[Any] = [(one.requires_grad, one.dtype, one.stride()) for one in self.tensors]
        found += [torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()]
        return found

    def _writes_now(self) -> list[tuple[int, int]]:
        return [(one.data_ptr(), one._version) for one in self._others]

    def _names(self) -> Iterator[str]:
        """Yield the name of each value; that of a submodule's training mode is empty."""
        for at, space in enumerate(self._spaces):
            if isinstance(space, (list, set, deque)):
                yield from ["an element"] * len(space)
            elif at < len(self._submodules):
                yield from ("" if name == _TRAINING else str(name) for name in space)
            else:
                yield from map(str, space)
        yield from (name for _, name in self._variables)


def _is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of which it is known where it lies, and its writes."""
    import torch

    is_one = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return is_one and not value.is_inference()


def _spaces_in(spaces: list[Any]) -> list[Any]:
    """Return the containers and the attributes of plain objects that these hold, one level down.

    Large containers are not looked into: it would have to be done at each call.
    """
    import torch

    found: dict[int, Any] = {}
    for space in spaces:
        if len(space) > _LARGE_COUNT:
            continue
        for value in space.values() if isinstance(space, dict) else space:
            if isinstance(value, (dict, list, set, deque)):
                found[id(value)] = value
            elif isinstance(value, (torch.nn.Module, torch.Tensor, *_CODE)):
                continue
            elif isinstance(inside := getattr(value, "__dict__", None), dict):
                found[id(inside)] = inside
    return list(found.values())


def _variables_of(module: Any) -> list[Variable]:
    named = (one for code, space in model_code(module) for one in named_in(code, space))
    # The streams in `sys` are others while a call is examined.
    found = {(id(where), name): (where, name) for where, name in named if where is not vars(sys)}
    return [(where, name) for where, name in found.values() if not isinstance(where[name], _CODE)]
