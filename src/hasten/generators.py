"""Random generators: reading and restoring the global ones, and samplers that seed their own."""

from __future__ import annotations

import pickle
import random
import sys
from importlib import import_module
from typing import Any

States = tuple[Any, ...]
_OTHER_BITS = "pickled"


def read() -> States:
    """Return the states of the global generators of torch, Python and, if it is loaded, NumPy.

    The states are plain bytes, numbers and tuples: they compare by value and can be pickled.
    """
    return (read_torch(), random.getstate(), read_numpy())


def read_torch() -> bytes:
    """Return the state of torch's generator on the CPU."""
    import torch

    state: bytes = torch.get_rng_state().numpy().tobytes()
    return state


def read_numpy(*, loads: bool = False) -> Any:
    """Return the state of NumPy's global generator, None if it is not loaded.

    NumPy loads it at its first use; `loads` does so where NumPy itself is loaded.
    """
    if loads and "numpy" in sys.modules:
        import_module("numpy.random")
    module = sys.modules.get("numpy.random")
    if module is None:
        return None
    if has_other_bits(module):
        return (_OTHER_BITS, pickle.dumps(module.get_state(legacy=False)))
    name, keys, *rest = module.get_state()
    return (name, keys.tobytes(), *rest)


def has_other_bits(module: Any) -> bool:
    """Return whether the script has replaced NumPy's default bit generator, MT19937."""
    state = getattr(getattr(module, "mtrand", None), "_rand", None)
    return type(getattr(state, "_bit_generator", None)) is not getattr(module, "MT19937", None)


def restore(states: States) -> None:
    """Restore the three generators to what `read` returned.

    If NumPy was imported only since then, it is left as it is: nobody had drawn from it.
    """
    import torch

    torch_state, python_state, numpy_state = states
    torch.set_rng_state(torch.frombuffer(bytearray(torch_state), dtype=torch.uint8))
    random.setstate(python_state)
    if numpy_state is not None:
        restore_numpy(numpy_state)


def restore_numpy(state: Any) -> None:
    """Restore NumPy's global generator to what `read_numpy` returned."""
    module = import_module("numpy.random")  # a worker may have been the first to import it
    name, keys, *rest = state
    if name == _OTHER_BITS:
        module.set_state(pickle.loads(keys))
        return
    module.set_state((name, sys.modules["numpy"].frombuffer(keys, "uint32"), *rest))


def is_reseeded(sampler: Any) -> bool:
    """Return whether a sampler is that of accelerate, which seeds its generator for each pass.

    Apart from that it shuffles as torch's does.
    """
    kind = type(sampler)
    return (kind.__module__, kind.__name__) == ("accelerate.data_loader", "SeedableRandomSampler")
