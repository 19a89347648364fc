"""Whether a model's own code uses what torch's compiler cannot: generators, caches, variables."""

from __future__ import annotations

import os
import random
import sys
from dis import get_instructions
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HOMES = ("random", "secrets", "time", "uuid", "datetime", "numpy.random")
_CACHE = type(lru_cache(int))
_TORCH = ("torch", "torchvision")
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "IMPORT_NAME")
_NAMES = frozenset({"urandom", "getrandom"})


def other_draws(module: Any) -> str:
    """Say where code of a model names a generator or a clock other than torch's own, or a cache.

    Compiled code would keep what it drew while being traced, or draw in other places. It calls
    the function behind a cache (`functools.lru_cache`) without asking the cache, and keeps what an
    environment variable was. All code
    of the script's classes and of the functions that it names is read, whether it has run or not.
    """
    known: set[int] = set()
    for part in module.modules():
        if word := _held(vars(part), known, ""):
            return word
        for kind in type(part).__mro__:
            if kind is object or kind.__module__.startswith(("torch.nn.", "torchvision.")):
                continue
            if word := _held(vars(kind), known, kind.__name__):
                return word
    return ""


def states() -> dict[str, Any]:
    """Return the state of Python's generator, and of NumPy's if it is imported."""
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return {"random": random.getstate()}
    kind, keys, *rest = numpy.get_state(legacy=True)
    return {"random": random.getstate(), "numpy": (kind, keys.tobytes(), *rest)}


def went_on(before: dict[str, Any]) -> bool:
    """Return whether a generator has drawn since its state was taken."""
    now = states()
    return any(now[name] != state for name, state in before.items())


def _held(values: Mapping[str, Any], known: set[int], owner: str) -> str:
    for name, value in list(values.items()):
        if _is_chance(value):
            return f"{owner or 'the model'} has {name}"
        for code, space in _functions(value):
            if word := _read(code, space, known):
                return word
    return ""


def _functions(value: Any) -> Iterator[tuple[CodeType, Mapping[str, Any]]]:
    """Yield the code behind a value, and what it sees: its globals and what it closes over."""
    inside = (getattr(value, name, None) for name in ("__func__", "fget", "__wrapped__"))
    for one in (value, *inside):
        if type(one) is FunctionType:
            closed = zip(one.__code__.co_freevars, one.__closure__ or (), strict=False)
            cells = {name: cell.cell_contents for name, cell in closed if _is_filled(cell)}
            yield one.__code__, {**one.__globals__, **cells}


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _read(code: CodeType, space: Mapping[str, Any], known: set[int]) -> str:
    """Say which of these code, or a function that it names, uses; empty if none."""
    if id(code) in known:
        return ""
    known.add(id(code))
    names = set(code.co_names)
    for name in {one.argval for one in get_instructions(code) if one.opname in _LOADS}:
        for value in _named(name, names, space):
            if _is_chance(value):
                return f"{code.co_name} names {name}"
            if getattr(value, "__module__", "").partition(".")[0] in _TORCH:
                continue
            for inner, seen in _functions(value):
                if word := _read(inner, seen, known):
                    return word
    nested = (part for part in code.co_consts if isinstance(part, CodeType))
    return next(filter(None, (_read(part, space, known) for part in nested)), "")


def _named(name: str, names: set[str], space: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what a name refers to, and what code takes from it if that is a module."""
    value = space[name] if name in space else sys.modules.get(name)
    yield value
    if isinstance(value, ModuleType) and value.__name__.partition(".")[0] != "torch":
        yield from (vars(value)[other] for other in names if other in vars(value))
        if names & _NAMES:
            yield random  # the system's


def _is_chance(value: Any) -> bool:
    """Return whether a value is a generator, clock or cache, or belongs to one of their modules."""
    import torch

    if value is os.environ or value is os.getenv:
        return True
    if isinstance(value, _CACHE):
        return str(getattr(value, "__module__", "")).partition(".")[0] not in _TORCH

    owner = getattr(value, "__self__", None)
    if any(isinstance(one, (random.Random, torch.Generator)) for one in (value, owner)):
        return True
    homes = [value.__name__] if isinstance(value, ModuleType) else [
        getattr(value, "__module__", None) or "", type(value).__module__,
        type(owner).__module__ if owner is not None else "",
    ]  # fmt: skip
    return any(
        str(home).startswith(kind) and _ends(str(home), kind) for home in homes for kind in _HOMES
    )


def _ends(home: str, kind: str) -> bool:
    return home == kind or home.startswith((f"{kind}.", f"{kind}_"))
