"""The code of a model: of its classes, and of the functions that they name."""

from __future__ import annotations

import os
import random
import sys
from collections import ChainMap
from collections.abc import Mapping
from dis import get_instructions
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.root_calls.own_code import is_own_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, MutableMapping

    Space = ChainMap[str, Any]
    Variable = tuple[MutableMapping[str, Any], str]

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "IMPORT_NAME")
_LIBRARIES = (
    "torch", "torchvision", "numpy", "math", "functools", "itertools", "typing", "builtins",
    "collections",
)  # fmt: skip
_OUTWARD = frozenset({
    "print", "pprint", "open", "save", "savez", "savetxt", "savefig", "imsave", "imwrite", "tofile",
    "write", "writelines", "write_text", "write_bytes", "add_scalar", "add_image", "add_histogram",
    "debug", "info", "warning", "error", "exception", "add_scalars", "dump", "log_metric",
    "writerow", "writerows", "log_dict", "wandb", "mlflow",
})  # fmt: skip
_BY_NAME = frozenset({"getattr", "attrgetter", "methodcaller", "vars", "__dict__", "eval", "exec"})
_MOST_ELEMENTS_COUNT = 1000
_GENERATORS = ("random", "numpy.random")
_CHANCE = (*_GENERATORS, "secrets", "time", "uuid", "datetime")
_CACHE = type(lru_cache(int))
_SYSTEM_DRAWS = frozenset({"urandom", "getrandom"})


def model_parts(module: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the attributes of each submodule, and those of its classes with the class's name.

    Torch's own classes are left out.
    """
    for part in module.modules():
        yield "", dict(vars(part))
        for kind in type(part).__mro__:
            if kind is not object and not kind.__module__.startswith(("torch.nn.", "torchvision.")):
                yield kind.__name__, dict(vars(kind))


def model_code(module: Any, *, of_calls: bool = False) -> Iterator[tuple[CodeType, Space]]:
    """Yield each piece of code, whether it has run or not, and the variables that it sees.

    These are what it closes over, and its globals. Libraries are left out; with `of_calls`, so is
    what no call runs: the statements of `__init__`, and methods that nothing holds but their class
    and that no other code names.
    """
    unnamed = _named_only(module) if of_calls else {}
    aside = {id(value) for values in unnamed.values() for value in values}
    known: set[int] = set()
    waiting = [
        (name, found) for _, values in model_parts(module) for name, value in values.items()
        if id(value) not in aside for found in _functions(value)
    ]  # fmt: skip
    while waiting:
        name, (code, space) = waiting.pop()
        if id(code) in known:
            continue
        known.add(id(code))
        if not (of_calls and name == "__init__"):
            yield code, space
        waiting += [("", (part, space)) for part in code.co_consts if isinstance(part, CodeType)]
        values = [where[variable] for where, variable in named_in(code, space)]
        values += [
            value for other in _methods_named(code, unnamed) for value in unnamed.get(other, ())
        ]
        waiting += [("", found) for value in values for found in _functions(value)]


def _methods_named(code: CodeType, names: Collection[str]) -> Collection[str]:
    """Return which of some methods code may call: a library makes up no name of the script's."""
    if not _BY_NAME & set(code.co_names):
        return code.co_names
    if is_own_file(code.co_filename):
        return names
    tuples = [one if isinstance(one, tuple) else (one,) for one in code.co_consts]
    texts = (one for parts in tuples for one in parts if isinstance(one, str))
    return sorted({*code.co_names, *texts})


def _named_only(module: Any) -> dict[str, list[Any]]:
    """Return the methods that a call can run only if code names them, by their names.

    Torch may call special methods, `forward`, and those that are also of its other classes; what
    else a module has (`to`, `train`, `state_dict`) no call runs.
    """
    from torch.nn import Module

    idle = {name for name in vars(Module) if name[0] != "_" and name != "forward"}
    found: dict[str, list[Any]] = {}
    for kinds in dict.fromkeys(type(part).__mro__ for part in module.modules()):
        theirs = {name for kind in kinds if is_library(kind.__module__) for name in vars(kind)}
        theirs -= idle
        for kind in (one for one in kinds if not is_library(one.__module__)):
            for name in sorted(vars(kind).keys() - theirs):
                is_special = name.startswith("__") and name.endswith("__")
                if not is_special and _is_only_in_class(kind, name):
                    found.setdefault(name, []).append(vars(kind)[name])
    return found


class _Example:
    def plain(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    @staticmethod
    def static() -> None: ...


_EXAMPLES = {type(value): name for name, value in vars(_Example).items() if name[0] != "_"}


def _is_only_in_class(kind: type, name: str) -> bool:
    """Return whether a class alone holds a method: no table of functions does, no bound method."""
    example = _EXAMPLES.get(type(vars(kind)[name]))
    return example is not None and _holder_count(kind, name) <= _holder_count(_Example, example)


def _holder_count(kind: type, name: str) -> int:
    value = vars(kind)[name]
    return sys.getrefcount(getattr(value, "__func__", value))


def named_in(code: CodeType, space: Space) -> Iterator[Variable]:
    """Yield the variables of code, and what it may take from its own classes and modules.

    Each as the mapping that has it, which follows later changes, and its name.
    """
    names = set(code.co_names)
    for name in _loaded(code):
        where = next((one for one in (*space.maps, sys.modules) if name in one), None)
        if where is None:
            continue
        yield where, name
        value = where[name]
        if isinstance(value, ModuleType):
            is_open = value.__name__.partition(".")[0] != "torch"
        else:
            is_open = isinstance(value, type) and not is_library(value.__module__)
        if is_open:
            inside: Any = vars(value)
            yield from ((inside, other) for other in names if other in inside)


@lru_cache(maxsize=4096)
def _loaded(code: CodeType) -> frozenset[str]:
    """Return the names of the variables that code reads, apart from its own."""
    return frozenset(one.argval for one in get_instructions(code) if one.opname in _LOADS)


def is_library(name: str | None) -> bool:
    """Return whether a module is of torch, NumPy or Python, and none of the script's."""
    return str(name).partition(".")[0] in _LIBRARIES


def _functions(value: Any) -> Iterator[tuple[CodeType, Space]]:
    """Yield the code behind a value or its elements, and what it sees: its cells and globals."""
    if isinstance(value, (dict, list, tuple)):
        elements = list(value.values()) if isinstance(value, dict) else value
        for one in elements if len(elements) <= _MOST_ELEMENTS_COUNT else ():
            yield from _code_of(one)
    else:
        yield from _code_of(value)


def _code_of(value: Any) -> Iterator[tuple[CodeType, Space]]:
    inside = (getattr(value, name, None) for name in ("__func__", "fget", "__wrapped__", "func"))
    for one in (value, *inside):
        one = getattr(one, "__func__", one)  # noqa: PLW2901 - of a bound method in a partial
        if type(one) is FunctionType and not is_library(one.__module__):
            cells: Any = _Cells(one)
            yield one.__code__, ChainMap(cells, one.__globals__)


class _Cells(Mapping[str, Any]):
    """The variables of the functions around one, as they are now."""

    def __init__(self, function: FunctionType) -> None:
        names = function.__code__.co_freevars
        self._cells = dict(zip(names, function.__closure__ or (), strict=False))

    def __getitem__(self, name: str) -> Any:
        try:
            return self._cells[name].cell_contents
        except ValueError:  # it has no value yet
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)


def writes_out(module: Any) -> str:
    """Say where a call of a model may print or write a file; empty if nowhere.

    That is in the script's own code: what a library warns of is said by the script's process, and
    by no other.
    """
    for code, _ in model_code(module, of_calls=True):
        found = _OUTWARD & set(code.co_names)
        if found and is_own_file(code.co_filename):
            return f"{code.co_name} names {min(found)}"
    return ""


# ---- whether a model uses what torch's compiler cannot: generators, caches, variables


def other_generators(module: Any) -> str:
    """Say where a model has a generator other than torch's own: it may draw while it is traced."""
    for owner, values in model_parts(module):
        for name, value in values.items():
            if _is_generator(value):
                return f"{owner or 'the model'} has {name}"
    for code, space in model_code(module):
        for where, name in named_in(code, space):
            if _is_generator(where[name]):
                return f"{code.co_name} names {name}"
    return ""


def other_draws(module: Any, traced: Collection[CodeType] | None = None) -> str:
    """Say where code of a model names a generator or a clock other than torch's own, or a cache.

    Compiled code would keep what it drew while being traced, or draw in other places. It calls
    the function behind a cache (`functools.lru_cache`) without asking the cache, and keeps what an
    environment variable was.

    Args:
        module: the model.
        traced: the code that was traced, or None if that is unknown. Of a library, only this
            counts; the script's own may act where torch was told not to trace it.
    """
    for owner, values in model_parts(module):
        for name, value in values.items():
            if _is_chance(value):
                return f"{owner or 'the model'} has {name}"
    for code, space in model_code(module):
        counts = traced is None or code in traced or is_own_file(code.co_filename)
        for where, name in named_in(code, space) if counts else ():
            value = where[name]
            if _is_chance(value) or (isinstance(value, ModuleType) and _is_systems(code, value)):
                return f"{code.co_name} names {name}"
    return ""


def _is_systems(code: CodeType, module: ModuleType) -> bool:
    is_torch = module.__name__.partition(".")[0] == "torch"
    return not is_torch and not _SYSTEM_DRAWS.isdisjoint(code.co_names)


def _is_chance(value: Any) -> bool:
    """Return whether a value is a generator, clock or cache, or belongs to one of their modules."""
    if value is os.environ or value is os.getenv:
        return True
    if isinstance(value, _CACHE):
        home = str(getattr(value, "__module__", ""))
        return home.partition(".")[0] not in ("torch", "torchvision")
    return _is_generator(value) or _comes_from(value, _CHANCE)


def _is_generator(value: Any) -> bool:
    """Return whether a value is a generator, or belongs to one or to a module of generators."""
    import torch

    both = value, getattr(value, "__self__", None)
    if any(isinstance(one, random.SystemRandom) for one in both):
        return False  # it has no state
    kinds = (random.Random, torch.Generator)
    return any(isinstance(one, kinds) for one in both) or _comes_from(value, _GENERATORS)


def _comes_from(value: Any, modules: Iterable[str]) -> bool:
    owner = getattr(value, "__self__", None)
    homes = [value.__name__] if isinstance(value, ModuleType) else [
        getattr(value, "__module__", None) or "", type(value).__module__,
        type(owner).__module__ if owner is not None else "",
    ]  # fmt: skip
    return any(_is_in(str(home), module) for home in homes for module in modules)


def _is_in(home: str, module: str) -> bool:
    return home == module or home.startswith((f"{module}.", f"{module}_"))
