"""Samples as raw bytes, and back as new objects indistinguishable from the old ones."""

from __future__ import annotations

import marshal
import struct
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_ALIGN_BYTES = 64
_LENGTH = struct.Struct("<Q")
PLAIN = (type(None), bool, int, float, complex, str, bytes)
_ARRAY_KINDS = "biufcSUmM"
_IMAGE_MODES = {"1", "L", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", "I", "F"}
_IMAGE_FIELDS = {
    "im", "_im", "mode", "_mode", "size", "_size", "info",
    "palette", "readonly", "_readonly", "_exif", "pyaccess", "_category",
}  # fmt: skip
_IMAGE_UNSET = ("palette", "readonly", "_readonly", "_exif", "pyaccess", "_category")


class Unpackable(Exception):
    """A sample holds what cannot be packed; the message says what."""


def pack(value: Any, note: Any = None) -> list[Any]:
    """Return the buffers from which `unpack` rebuilds the same value.

    It takes plain values, tensors, NumPy arrays and scalars, Pillow images, and tuples,
    lists and dicts of them, all of exactly these types. No object may occur twice in it: that
    would make two copies.

    Args:
        value: a sample.
        note: plain values that can be read without building the rest.

    Raises:
        Unpackable: it holds something else.
    """
    found = places(value)
    if len(set(found)) < len(found):
        raise Unpackable("an object that occurs twice in one sample")
    buffers: list[Any] = []
    skeleton = _describe(value, buffers)
    head = marshal.dumps((note, skeleton))
    parts: list[Any] = [_LENGTH.pack(len(head)), head]
    at = _LENGTH.size + len(head)
    for buffer in buffers:
        start = aligned(at)
        parts += [bytes(start - at), buffer]
        at = start + len(buffer)
    return parts


class Packed:
    """A packed value whose note is read at once and the rest on demand.

    Args:
        view: writable bytes (torch warns about others), aligned to 64 bytes; they are only read.
    """

    def __init__(self, view: Any) -> None:
        (length,) = _LENGTH.unpack_from(view)
        at = _LENGTH.size + length
        self.note, self._skeleton = marshal.loads(view[_LENGTH.size : at])
        self._view, self._at = view, at

    def build(self) -> Any:
        """Return a new value."""
        return _Builder(self._view, self._at).build(self._skeleton)

    def lend(self) -> tuple[Any, Callable[[], Any]]:
        """Return a value whose arrays are the packed bytes: only read it, as a collation does.

        With it comes what makes new values. Where nothing can be lent, the value is None.
        """
        builder = _Builder(self._view, self._at, lends=True)
        try:
            lent = builder.build(self._skeleton)
        except _NotLent:
            return None, self.build
        return lent, self.build if builder.has_arrays else partial(copied, lent)


def unpack(view: Any) -> Any:
    """Return a new value from the bytes that `pack` made."""
    return Packed(view).build()


def aligned(at: int) -> int:
    """Return where the next buffer begins after others that end at `at`."""
    return at + -at % _ALIGN_BYTES


def places(value: Any) -> list[int]:
    """Return the memory addresses of the parts of a sample that somebody could write to."""
    import torch

    kind = type(value)
    if kind in (list, tuple):
        own = [id(value)] if kind is list else []
        return own + [place for part in value for place in places(part)]
    if kind is dict:
        return [id(value)] + [place for part in value.values() for place in places(part)]
    if isinstance(value, torch.Tensor):
        plain = value.layout == torch.strided
        return [value.untyped_storage().data_ptr()] if plain and value.numel() else []
    if hasattr(kind, "__array_interface__") and hasattr(kind, "strides"):
        return [value.__array_interface__["data"][0]] if value.size and value.shape else []
    return [] if kind in PLAIN else [id(value)]


# ---- into bytes


def _describe(value: Any, buffers: list[Any]) -> tuple[Any, ...]:
    import torch

    kind = type(value)
    if kind in PLAIN:
        return ("plain", value)
    if kind in (list, tuple):
        return (kind.__name__, [_describe(part, buffers) for part in value])
    if kind is dict:
        return _describe_dict(value, buffers)
    if kind is torch.Tensor:
        return _describe_tensor(value, buffers)
    numpy: Any = sys.modules.get("numpy")
    if numpy and kind is numpy.ndarray:
        return _describe_array(value, buffers)
    if numpy and isinstance(value, numpy.generic) and value.dtype.kind in "biufc":
        return ("scalar", value.dtype.str, value.tobytes())
    image: Any = sys.modules.get("PIL.Image")
    if image and kind is image.Image:
        return _describe_image(value, buffers)
    raise Unpackable(f"an object of type {kind.__module__}.{kind.__qualname__}")


def _describe_dict(value: dict[Any, Any], buffers: list[Any]) -> tuple[Any, ...]:
    if not all(type(key) in PLAIN for key in value):
        raise Unpackable("a dict with keys that are no plain values")
    parts = [_describe(part, buffers) for part in value.values()]
    return ("dict", list(value), parts)


def check_tensor(value: Any) -> tuple[int, ...]:
    """Return the axes of a tensor by decreasing stride.

    Raises:
        Unpackable: it is more or other than plain memory of its own.
    """
    import torch

    odd = (
        value.layout != torch.strided
        or value.device.type != "cpu"
        or value.requires_grad
        or value.is_quantized
        or value.is_conj()
        or value.is_neg()
        or value.is_shared()
        or value.is_inference() != torch.is_inference_mode_enabled()
        or bool(value.__dict__)
    )
    order = _outermost_first(value.shape, value.stride())
    if odd or order is None:
        raise Unpackable("a tensor that is not plain memory of its own")
    return order


def _describe_tensor(value: Any, buffers: list[Any]) -> tuple[Any, ...]:
    import torch

    order = check_tensor(value)
    permuted = value.permute(order).contiguous()
    name = str(value.dtype).removeprefix("torch.")
    flat = permuted.as_strided((value.numel(),), (1,))  # an axis of one may have any stride
    buffers.append(memoryview(flat.view(torch.uint8).numpy()))
    return ("tensor", name, tuple(value.shape), value.stride(), order, value.nbytes)


def _describe_array(value: Any, buffers: list[Any]) -> tuple[Any, ...]:
    numpy = sys.modules["numpy"]
    dtype = value.dtype
    order = _outermost_first(value.shape, value.strides)
    if dtype.kind not in _ARRAY_KINDS or dtype.metadata or not dtype.itemsize or order is None:
        raise Unpackable(f"an array of {dtype}")
    permuted = value.transpose(order)
    again = numpy.empty(permuted.shape, dtype).transpose(_inverse(order))
    pairs = zip(value.shape, value.strides, again.strides, strict=True)
    if value.size and any(length > 1 and old != new for length, old, new in pairs):
        raise Unpackable("an array with gaps")
    buffers.append(permuted.tobytes())
    flags = value.flags.writeable, value.strides
    return ("array", dtype.str, permuted.shape, order, flags, value.nbytes)


def _describe_image(value: Any, buffers: list[Any]) -> tuple[Any, ...]:
    fields = vars(value)
    known = set(fields) <= _IMAGE_FIELDS and value.mode in _IMAGE_MODES
    if not known or any(fields.get(name) for name in _IMAGE_UNSET):
        raise Unpackable("an image with a palette, or still tied to its file")
    inside: list[Any] = []
    info = _describe(value.info, inside)
    if inside:
        raise Unpackable("an image with arrays in its info")
    buffers.append(value.tobytes())
    return ("image", value.mode, value.size, info, len(buffers[-1]))


def _outermost_first(shape: Any, strides: Any) -> tuple[int, ...] | None:
    """Return the axes by decreasing stride; None if elements overlap or run backwards."""
    order = tuple(sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis)))
    inner_to_outer = [axis for axis in reversed(order) if shape[axis] > 1]
    if 0 in shape:
        return order
    span = 0
    for axis in inner_to_outer:
        if strides[axis] <= span:
            return None
        span += strides[axis] * (shape[axis] - 1)
    return order


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(axis) for axis in range(len(order)))


# ---- and back


class _Builder:
    """Makes the parts of a value in the order in which they were packed.

    Args:
        packed: the bytes.
        at: where those of the first part begin.
        lends: its arrays and tensors are views of the bytes.

    Attributes:
        has_arrays: the value holds some of NumPy's.
    """

    def __init__(self, packed: Any, at: int, *, lends: bool = False) -> None:
        self.has_arrays = False
        self._packed = packed
        self._at = at
        self._lends = lends

    def build(self, skeleton: tuple[Any, ...]) -> Any:
        kind, *rest = skeleton
        if kind == "plain":
            return rest[0]
        return getattr(self, f"_{kind}")(*rest)

    def _next(self, length: int) -> int:
        start = aligned(self._at)
        self._at = start + length
        return start

    def _list(self, parts: list[Any]) -> list[Any]:
        return [self.build(part) for part in parts]

    def _tuple(self, parts: list[Any]) -> tuple[Any, ...]:
        return tuple(self._list(parts))

    def _dict(self, keys: list[Any], parts: list[Any]) -> dict[Any, Any]:
        return dict(zip(keys, self._list(parts), strict=True))

    def _tensor(self, name: str, shape: Any, stride: Any, order: Any, length: int) -> Any:
        import torch

        dtype = getattr(torch, name)
        start = self._next(length)
        if not length:
            return torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
        raw = torch.frombuffer(self._packed, dtype=torch.uint8, count=length, offset=start)
        packed = raw.view(dtype).view([shape[axis] for axis in order]).permute(_inverse(order))
        if not self._lends:
            return torch.empty_strided(shape, stride, dtype=dtype, device="cpu").copy_(packed)
        if not packed.stride() == packed.clone().stride() == stride:  # gaps; an axis of one
            raise _NotLent
        return packed

    def _array(self, dtype: str, shape: Any, order: Any, flags: Any, length: int) -> Any:
        numpy: Any = sys.modules["numpy"]
        start = self._next(length)
        self.has_arrays = True
        flat = numpy.empty(0, dtype)
        if length:
            packed = numpy.frombuffer(self._packed[start : start + length], dtype)
            flat = packed if self._lends else packed.copy()
        value = flat.reshape(shape).transpose(_inverse(order))
        writeable, strides = flags
        if value.strides != strides:  # `x[None]` has an axis of one element and a stride of 0
            value = numpy.ndarray(value.shape, dtype, flat, 0, strides)
        value.flags.writeable = writeable
        return value

    def _scalar(self, dtype: str, raw: bytes) -> Any:
        self.has_arrays = True
        return sys.modules["numpy"].frombuffer(raw, dtype)[0]

    def _image(self, mode: str, size: Any, info: Any, length: int) -> Any:
        if self._lends:
            raise _NotLent
        start = self._next(length)
        module = sys.modules["PIL.Image"]
        image = module.frombytes(mode, size, self._packed[start : start + length])
        image.info = self.build(info)
        return image


class _NotLent(Exception):
    """A part of a value is not in the packed bytes as it would be in memory of its own."""


def copied(value: Any) -> Any:
    """Return a copy of a lent value, whose strides are those of its copies."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is dict:
        return {key: copied(part) for key, part in value.items()}
    if kind in (list, tuple):
        return kind(map(copied, value))
    if hasattr(value, "clone"):
        return value.clone()
    return value  # a number of NumPy's
