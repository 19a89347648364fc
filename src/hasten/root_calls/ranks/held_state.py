"""What a forked process has a copy of: attributes of a model, and variables that its code reads."""

from __future__ import annotations

from collections import deque
from dis import get_instructions
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from hasten.root_calls.ranks.weights import others_in

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_CODE = (FunctionType, BuiltinFunctionType, MethodType, type)
_LIBRARIES = ("torch", "torchvision", "numpy", "math", "functools", "itertools", "typing")
_TRAINING = "training"
_ABSENT = object()


class HeldState:
    """Tells whether a model is what it was at the fork, but for its values.

    What is watched: attributes of its submodules, containers and plain objects among them, which
    weights require gradients and how they lie in memory, and the global variables that methods of
    its classes read.

    Args:
        module: the model; it is not kept alive.
    """

    def __init__(self, module: Any) -> None:
        self._parts = [vars(part) for part in module.modules()]
        self._tensors = [*module.parameters(), *others_in(module)]
        self._variables = _variables_of(module)
        read = {name: space[name] for space, name in self._variables}
        self._spaces = [*self._parts, *_spaces_in([*self._parts, read])]
        self.accept()

    @property
    def draws_by_itself(self) -> bool:
        """Whether it has a random generator of its own."""
        import torch

        return any(isinstance(value, torch.Generator) for value in self._values)

    @property
    def training(self) -> tuple[bool, ...]:
        """Whether each submodule is in training mode."""
        return tuple(part[_TRAINING] for part in self._parts)

    @property
    def has_other_training(self) -> bool:
        """Whether other submodules are in training mode than before."""
        return self.training != self._flags

    def accept(self) -> None:
        """Take the state as it is now for the one to compare with."""
        self._values, self._forms, self._flags = self._now(), self._forms_now(), self.training

    def changed(self) -> str:
        """Say what has changed beside values and training modes; empty for nothing."""
        if self._forms_now() != self._forms:
            return "which weights require gradients, or their layout"
        now = self._now()
        if len(now) == len(self._values) and all(map(is_, now, self._values)):
            return ""
        pairs = zip(self._names(), self._values, now, strict=False)
        others = (name for name, old, new in pairs if old is not new and name != _TRAINING)
        return next(others, "" if len(now) == len(self._values) else "an attribute")

    def _now(self) -> list[Any]:
        found: list[Any] = []
        for space in self._spaces:
            found += space.values() if isinstance(space, dict) else space
        found += [space.get(name, _ABSENT) for space, name in self._variables]
        return found

    def _forms_now(self) -> list[Any]:
        return [(tensor.requires_grad, tensor.stride()) for tensor in self._tensors]

    def _names(self) -> list[str]:
        """Return a name for each value in `_now`, for messages."""
        found: list[str] = []
        for space in self._spaces:
            found += map(str, space if isinstance(space, dict) else ["an element"] * len(space))
        return found + [name for _, name in self._variables]


def _spaces_in(spaces: list[dict[str, Any]]) -> list[Any]:
    """Return the containers and the attributes of plain objects that these hold, one level down."""
    import torch

    found: dict[int, Any] = {}
    for space in spaces:
        for value in space.values():
            if isinstance(value, (dict, list, set, deque)):
                found[id(value)] = value
            elif isinstance(value, (torch.nn.Module, torch.Tensor, *_CODE, ModuleType)):
                continue
            elif isinstance(inside := getattr(value, "__dict__", None), dict):
                found[id(inside)] = inside
    return list(found.values())


def _variables_of(module: Any) -> list[tuple[dict[str, Any], str]]:
    """Return the global variables that methods of a model's classes read: where, and the name.

    Functions that they call are followed; code of libraries is not.
    """
    known: set[int] = set()
    found: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    kinds = {kind for part in module.modules() for kind in type(part).__mro__}
    waiting = [
        value
        for kind in kinds
        if not _is_library(kind.__module__)
        for value in vars(kind).values()
        if isinstance(value, FunctionType)
    ]
    while waiting:
        function = waiting.pop()
        if id(function.__code__) in known:
            continue
        known.add(id(function.__code__))
        space = function.__globals__
        for name in _read(function.__code__):
            value = space.get(name, _ABSENT)
            if isinstance(value, FunctionType):
                if not _is_library(value.__module__):
                    waiting.append(value)
            elif value is not _ABSENT and not isinstance(value, (*_CODE, ModuleType)):
                found[id(space), name] = space, name
    return list(found.values())


def _is_library(name: str | None) -> bool:
    return str(name).partition(".")[0] in (*_LIBRARIES, "builtins", "collections")


def _read(code: CodeType) -> set[str]:
    names = {one.argval for one in get_instructions(code) if one.opname in _LOADS}
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return names.union(*map(_read, inner))
