"""The leading part of a chain of transforms that draws nothing and is the same each time."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any

_IMAGE, _TENSOR = "image", "tensor"
# What each transform takes, and what it makes of it.
_KNOWN = {
    "Resize": {_IMAGE: _IMAGE},
    "CenterCrop": {_IMAGE: _IMAGE},
    "Pad": {_IMAGE: _IMAGE},
    "Grayscale": {_IMAGE: _IMAGE},
    "ToTensor": {_IMAGE: _TENSOR},
    "PILToTensor": {_IMAGE: _TENSOR},
    "ConvertImageDtype": {_TENSOR: _TENSOR},
    "Normalize": {_TENSOR: _TENSOR},
}
_HOMES = ("torchvision.transforms", "torchvision.transforms.v2")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_PLAIN = (int, float, str, bool, type(None))


def chain_of(transform: Any) -> list[Any]:
    """Return the transforms that are called one after the other.

    Only torchvision's own `Compose` is looked into. Anything else is one link.
    """
    if transform is None:
        return []
    for home in _HOMES:
        compose = getattr(sys.modules.get(home), "Compose", None)
        if compose is not None and type(transform) is compose:
            plain = _signature(transform, leaving="transforms") is not None
            return list(transform.transforms) if plain else [transform]
    return [transform]


def split(chain: list[Any]) -> tuple[list[str], list[str]]:
    """Return the signatures of the leading known transforms, and the kind after each.

    Two transforms with equal signatures do the same. Tensors are only scaled and converted here:
    resizing them would sum in an order that depends on the number of threads.

    Args:
        chain: transforms, the first of which gets a plain Pillow image.
    """
    kind, signatures, kinds = _IMAGE, [], []
    if _watched():
        return [], []
    for transform in chain:
        following = _KNOWN.get(_known_name(transform), {}).get(kind)
        signature = _signature(transform)
        if following is None or signature is None:
            break
        kind = following
        signatures.append(signature)
        kinds.append(kind)
    return signatures, kinds


def image_length(kinds: list[str]) -> int:
    """Return how many of the leading transforms still give an image: bytes, not floats."""
    return kinds.index(_TENSOR) if _TENSOR in kinds else len(kinds)


def _watched() -> bool:
    """Return whether somebody hooks into the calls of all modules."""
    torch_module = sys.modules.get("torch.nn.modules.module")
    return bool(
        getattr(torch_module, "_global_forward_hooks", None)
        or getattr(torch_module, "_global_forward_pre_hooks", None)
    )


def _known_name(transform: Any) -> str:
    kind = type(transform)
    for home in _HOMES:
        if getattr(sys.modules.get(home), kind.__name__, None) is kind:
            return str(kind.__name__)
    return ""


def _signature(transform: Any, leaving: str = "") -> str | None:
    """Return type and settings of a transform; None if something in it cannot be compared."""
    fields = getattr(transform, "__dict__", {})
    if any(fields.get(name) for name in _HOOKS):
        return None
    settings = []
    for name, value in sorted(fields.items()):
        if name.startswith("_") or name == leaving:
            continue
        plain = _plain(value)
        if plain is None:
            return None
        settings.append(f"{name}={plain}")
    kind = type(transform)
    return f"{kind.__module__}.{kind.__qualname__}({', '.join(settings)})"


def _plain(value: Any) -> str | None:
    """Return a text that is equal for equal values; None where the value is not plain."""
    import torch

    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if type(value) in _PLAIN or isinstance(value, torch.dtype):
        return f"{type(value).__name__} {value!r}"
    if type(value) in (list, tuple):
        parts = [_plain(part) for part in value]
        return None if None in parts else f"{type(value).__name__} {parts}"
    if hasattr(value, "tolist"):
        return f"{type(value).__name__} {value.dtype} {value.tolist()!r}"
    return None
