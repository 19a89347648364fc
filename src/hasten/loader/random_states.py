"""The random generators that a dataset can draw from: which there are, and whether they drew."""

from __future__ import annotations

import ctypes
import random
import sys
from types import FunctionType, MethodType, ModuleType
from typing import Any

from hasten import generators
from hasten.generators import has_other_bits, read_numpy, read_torch
from hasten.loader.fingerprint import bound_to

States = generators.States
read, restore = generators.read, generators.restore
_TWISTER_BYTES = 625 * 4
_DEEPEST = 5
_MOST_MEMBERS = 64


def as_here(states: States | None) -> States | None:
    """Return the states of another process, if it told them, as far as they are known in this one.

    Torch's workers load NumPy's generator and seed it. Where this process has not loaded it, nobody
    has drawn from it.
    """
    if states is None or "numpy.random" in sys.modules:
        return states
    return (*states[:2], None)


def marks() -> States:
    """Return in microseconds a mark that changes when one of the three generators is drawn from.

    NumPy is slow to report its state, so the memory that holds it is read instead. A
    normal number cached there by an earlier draw is not seen.
    """
    return (read_torch(), random.getstate(), _mark_numpy())


def _mark_numpy() -> Any:
    module = sys.modules.get("numpy.random")
    if module is None:
        return None
    if has_other_bits(module):
        return read_numpy()
    address = module.mtrand._rand._bit_generator.ctypes.state_address
    return ctypes.string_at(address, _TWISTER_BYTES)


def as_read(told: Any) -> Any:
    """Return states as `read` gave them: older torch turns tuples into lists when it pins them."""
    return tuple(map(as_read, told)) if isinstance(told, (list, tuple)) else told


def seed_as_worker(base_seed: int, worker_index: int) -> None:
    """Seed the three generators as torch does in a new loader worker."""
    import torch
    from torch.utils.data._utils import worker

    random.seed(base_seed + worker_index)
    torch.default_generator.manual_seed(base_seed + worker_index)  # not those of accelerators
    if "numpy" in sys.modules:
        generate: Any = worker._generate_state
        sys.modules["numpy"].random.seed(generate(base_seed, worker_index))


class Private:
    """The private generators that the given objects hold, and their states.

    Looks through attributes, containers, closures, defaults and the globals that functions
    name, a few levels deep. What is hidden deeper is not seen.
    """

    def __init__(self, *roots: Any) -> None:
        self.found = [value for value in reachable(*roots) if is_generator(value)]

    def read(self) -> States:
        """Return the state of each generator that was found."""
        return tuple(_state(generator) for generator in self.found)


def _state(generator: Any) -> Any:
    if hasattr(generator, "getstate"):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return repr(generator.bit_generator.state)
    state = generator.get_state()
    return state.numpy().tobytes() if hasattr(state, "numpy") else repr(state)


def is_generator(value: Any) -> bool:
    """Return whether a value is a random generator of torch's, Python's or NumPy's."""
    import torch

    if isinstance(value, (random.Random, torch.Generator)):
        return not isinstance(value, random.SystemRandom)
    kind = type(value)
    module = getattr(kind, "__module__", None) or ""
    return module.startswith("numpy.random") and kind.__name__ in ("Generator", "RandomState")


def reachable(*roots: Any) -> list[Any]:
    """Return each object that the given ones hold, a few levels deep, except inside generators."""
    found: dict[int, Any] = {}
    layer = list(roots)
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for value in layer:
            if id(value) in found or isinstance(value, (str, bytes, int, float, type(None))):
                continue
            found[id(value)] = value
            if not is_generator(value):
                below.extend(_members(value))
        layer = below
    return list(found.values())


def _members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())[:_MOST_MEMBERS]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)[:_MOST_MEMBERS]
    if isinstance(value, MethodType):
        return bound_to(value)
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, (type, ModuleType)):
        return []
    inside = list(getattr(value, "__dict__", {}).values())
    methods = [
        member
        for kind in type(value).__mro__
        if not kind.__module__.startswith(("torch.", "builtins"))
        for member in vars(kind).values()
        if isinstance(member, FunctionType)
    ]
    return [*inside, *methods]


def _of_function(function: FunctionType) -> list[Any]:
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [
        *bound_to(function),
        *given,
        *(value for value in named if not isinstance(value, ModuleType)),
    ]
