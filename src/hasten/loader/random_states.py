"""The random generators that a dataset can draw from: reading and restoring them."""

from __future__ import annotations

import ctypes
import pickle
import random
import sys
from importlib import import_module
from types import FunctionType, MethodType, ModuleType
from typing import Any

from hasten.loader.fingerprint import bound_to

States = tuple[Any, ...]
_TWISTER_BYTES = 625 * 4
_OTHER_BITS = "pickled"
_DEEPEST = 5
_MOST_MEMBERS = 64


def read() -> States:
    """Return the states of the global generators of torch, Python and, if it is loaded, NumPy.

    The states are plain bytes, numbers and tuples: they compare by value and can be pickled.
    """
    return (read_torch(), random.getstate(), read_numpy())


def as_here(states: States | None) -> States | None:
    """Return the states of another process, if it told them, as far as they are known in this one.

    Torch's workers load NumPy's generator and seed it. Where this process has not loaded it, nobody
    has drawn from it.
    """
    if states is None or "numpy.random" in sys.modules:
        return states
    return (*states[:2], None)


def read_torch() -> bytes:
    """Return the state of torch's generator on the CPU."""
    import torch

    state: bytes = torch.get_rng_state().numpy().tobytes()
    return state


def read_numpy() -> Any:
    """Return the state of NumPy's global generator, None if NumPy is not loaded."""
    module = sys.modules.get("numpy.random")
    if module is None:
        return None
    if _other_bits(module):
        return (_OTHER_BITS, pickle.dumps(module.get_state(legacy=False)))
    name, keys, *rest = module.get_state()
    return (name, keys.tobytes(), *rest)


def _other_bits(module: Any) -> bool:
    """Return whether the script has replaced NumPy's default bit generator, MT19937."""
    state = getattr(getattr(module, "mtrand", None), "_rand", None)
    return type(getattr(state, "_bit_generator", None)) is not getattr(module, "MT19937", None)


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
    if _other_bits(module):
        return read_numpy()
    address = module.mtrand._rand._bit_generator.ctypes.state_address
    return ctypes.string_at(address, _TWISTER_BYTES)


def restore(states: States) -> None:
    """Restore the three generators to what `read` returned.

    If NumPy was imported only since then, it is left as it is: nobody had drawn from it.
    """
    import torch

    torch_state, python_state, numpy_state = states
    torch.set_rng_state(torch.frombuffer(bytearray(torch_state), dtype=torch.uint8))
    random.setstate(python_state)
    if numpy_state is not None:
        module = import_module("numpy.random")  # a worker may have been the first to import it
        name, keys, *rest = numpy_state
        if name == _OTHER_BITS:
            module.set_state(pickle.loads(keys))
            return
        module.set_state((name, sys.modules["numpy"].frombuffer(keys, "uint32"), *rest))


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
