"""Modules and optimizers of torch as they are without us: weights, classes, numbers of hooks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_next_own_hook = 1 << 40


@contextmanager
def own_hooks() -> Iterator[None]:
    """Number the hooks that are registered meanwhile apart from the script's.

    Torch counts them all; a pickled model holds the numbers of its hooks.
    """
    from torch.utils.hooks import RemovableHandle

    global _next_own_hook
    next_id, RemovableHandle.next_id = RemovableHandle.next_id, _next_own_hook
    try:
        yield
    finally:
        _next_own_hook, RemovableHandle.next_id = RemovableHandle.next_id, next_id


def is_known(optimizer: Any) -> bool:
    """Return whether an optimizer is of a class of torch's; the script's may have its name."""
    import torch

    kind = type(optimizer)
    return kind is getattr(torch.optim, kind.__name__, None)


def weights_of(module: Any) -> Iterator[Any]:
    """Yield a module's parameters, also where its class has a `parameters` of its own.

    That may return a list, some of them, or ask for arguments: meant for the script's optimizer.
    """
    from torch.nn import Module

    return Module.parameters(module)
