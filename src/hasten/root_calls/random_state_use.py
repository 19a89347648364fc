"""Whether a model's own code uses what torch's compiler cannot: generators, caches, variables."""

from __future__ import annotations

import os
import random
import sys
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hasten.root_calls.model_code import model_code, model_parts, named_in

if TYPE_CHECKING:
    from types import CodeType

_HOMES = ("random", "secrets", "time", "uuid", "datetime", "numpy.random")
_CACHE = type(lru_cache(int))
_TORCH = ("torch", "torchvision")
_NAMES = frozenset({"urandom", "getrandom"})


def other_draws(module: Any) -> str:
    """Say where code of a model names a generator or a clock other than torch's own, or a cache.

    Compiled code would keep what it drew while being traced, or draw in other places. It calls
    the function behind a cache (`functools.lru_cache`) without asking the cache, and keeps what an
    environment variable was.
    """
    for owner, values in model_parts(module):
        for name, value in values.items():
            if _is_chance(value):
                return f"{owner or 'the model'} has {name}"
    for code, space in model_code(module):
        for name, value in named_in(code, space):
            if _is_chance(value) or (isinstance(value, ModuleType) and _is_systems(code, value)):
                return f"{code.co_name} names {name}"
    return ""


def _is_systems(code: CodeType, module: ModuleType) -> bool:
    """Return whether code may ask the system for random bytes by way of a module."""
    return bool(_NAMES & set(code.co_names)) and module.__name__.partition(".")[0] != "torch"


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
