"""Modules of torch as they are without us: all their weights, and the numbers of their hooks."""

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


def weights_of(module: Any) -> Iterator[Any]:
    """Yield a module's parameters, also where its class has a `parameters` of its own.

    That may return a list, some of them, or ask for arguments: meant for the script's optimizer.
    """
    from torch.nn import Module

    return Module.parameters(module)
