"""The leading part of a chain of transforms that draws nothing and is the same each time."""

from __future__ import annotations

from enum import Enum
from typing import Any

from hasten.loader.sources.transforms import generation_of, untouched

IMAGE, _TENSOR = "image", "tensor"
# What each transform takes, and what it makes of it.
_KNOWN = {
    "Resize": {IMAGE: IMAGE},
    "CenterCrop": {IMAGE: IMAGE},
    "Pad": {IMAGE: IMAGE},
    "Grayscale": {IMAGE: IMAGE},
    "ToTensor": {IMAGE: _TENSOR},
    "PILToTensor": {IMAGE: _TENSOR},
    "ConvertImageDtype": {_TENSOR: _TENSOR},
    "Normalize": {_TENSOR: _TENSOR},
}
_PLAIN = (int, float, str, bool, type(None))


def chain_of(transform: Any) -> list[Any]:
    """Return the transforms that are called one after the other.

    Only torchvision's own `Compose` is looked into. Anything else is one link.
    """
    if transform is None:
        return []
    is_compose = type(transform).__name__ == "Compose" and _is_own(transform)
    return list(transform.transforms) if is_compose else [transform]


def split(chain: list[Any]) -> tuple[list[str], list[str]]:
    """Return the signatures of the leading known transforms, and the kind after each.

    Two transforms with equal signatures do the same. Tensors are only scaled and converted here:
    resizing them would sum in an order that depends on the number of threads.

    Args:
        chain: transforms, the first of which gets a plain Pillow image.
    """
    kind, signatures, kinds = IMAGE, [], []
    for transform in chain:
        following = _KNOWN.get(type(transform).__name__, {}).get(kind)
        signature = _signature(transform) if following and _is_own(transform) else None
        if following is None or signature is None:
            break
        kind = following
        signatures.append(signature)
        kinds.append(kind)
    return signatures, kinds


def _is_own(transform: Any) -> bool:
    """Return whether a transform is torchvision's own, to the last method."""
    return generation_of(transform) is not None and untouched(transform)


def _signature(transform: Any) -> str | None:
    """Return type and settings of a transform; None if something in it cannot be compared."""
    settings = []
    for name, value in sorted(vars(transform).items()):
        if name.startswith("_"):
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
