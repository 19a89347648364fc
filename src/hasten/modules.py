"""What modules of torch hold, whatever methods of these names a script's classes have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def weights_of(module: Any) -> Iterator[Any]:
    """Yield a module's parameters, also where its class has a `parameters` of its own.

    That may return a list, some of them, or ask for arguments: meant for the script's optimizer.
    """
    from torch.nn import Module

    return Module.parameters(module)
