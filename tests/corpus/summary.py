"""Print what a training has come to.

A line that begins with `~` holds numbers that another order of sums may change in their last
digits, one that begins with `#` the digest of all their bits. All other lines are facts.
"""

import hashlib
import random
import sys

import numpy as np
import torch


def digest(data):
    """Return a short hash of bytes, or of what something looks like."""
    data = data if isinstance(data, bytes) else repr(data).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def tell(name, value):
    """Print one value: numbers with a point as such, everything else as it looks."""
    if torch.is_tensor(value):
        value = value.detach().cpu().numpy()
    if isinstance(value, float) or (
        isinstance(value, list) and value and all(isinstance(one, float) for one in value)
    ):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        flat = np.ascontiguousarray(value).ravel().astype(float)
        some = [*flat[:: 1 + flat.size // 8], flat.sum(), np.abs(flat).sum()]
        print("#", name, digest(value.tobytes()))
        print("~", name, *map(float, some))
    elif isinstance(value, np.ndarray):
        print(name, value.shape, digest(value.tobytes()))
    else:
        print(name, value)


def summarize(*models, losses=(), **facts):
    """Print the weights, the losses, the states of the generators, and whatever else matters."""
    for number, model in enumerate(models):
        for name, value in model.state_dict().items():
            tell(f"model{number}.{name}", value)
    print("steps", len(losses))
    tell("losses", list(losses))
    for name, value in facts.items():
        tell(name, value)
    print("torch", digest(torch.get_rng_state().numpy().tobytes()))
    print("random", digest(random.getstate()))
    print("numpy", digest(np.random.get_state()[1].tobytes()), np.random.get_state()[2:])
    sys.stdout.flush()
