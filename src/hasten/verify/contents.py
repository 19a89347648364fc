"""What a value holds: its bytes, its hash, the outline of its tensors and arrays.

A batch may be anything that the script makes: nothing here raises, whatever it is.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import (
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_ELEMENTS_COUNT = 100_000
_PLAIN = (str, bool, int, float, complex, bytes, bytearray, type(None))
_NAMED = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
_DEEPEST, _MOST_OBJECTS_COUNT = 32, 10_000
_SPARSE = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def tensor_bytes(tensor: Any) -> bytes:
    """Return the values of a tensor as bytes, in logical order whatever its strides."""
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def content_hash(value: Any) -> str:
    """Return a hash of all that a value consists of: see `ContentWalk`."""
    return _digest(ContentWalk().leaves(value))


def outline(batch: Any) -> list[tuple[str, float, float]]:
    """Return type and shape, mean and standard deviation of each tensor and array in a batch."""
    leaves = ContentWalk().leaves(batch)
    return [_outlined(leaf) for leaf in leaves if _is_tensor(leaf) or getattr(leaf, "ndim", None)]


class ContentWalk:
    """A walk through all that a value consists of, which ends and raises nothing.

    Of an object its attributes count, and where it has none, what it would be pickled as. What
    cannot be read counts by its type alone, as does what lies too deep and the way back to where
    the walk came from.
    """

    def __init__(self) -> None:
        self._above: set[int] = set()
        self._left_count = _MOST_OBJECTS_COUNT

    def leaves(self, value: Any) -> Iterator[Any]:
        """Yield tensors and arrays of numbers as they are, and bytes for anything else."""
        try:
            if isinstance(value, _PLAIN) and not _is_array(value):
                yield _plain(value)
            elif _is_tensor(value) or _is_array(value):
                yield value
            elif id(value) in self._above or len(self._above) > _DEEPEST:
                yield _kind(value)
            else:
                yield from self._below(value)
        except Exception:  # the script's classes may raise anything
            yield b"unreadable " + _kind(value)

    def _below(self, value: Any) -> Iterator[Any]:
        self._above.add(id(value))
        try:
            for part in self._parts(value):
                yield from self.leaves(part)
        finally:
            self._above.discard(id(value))

    def _parts(self, value: Any) -> Iterable[Any]:
        if isinstance(value, (list, tuple, deque)):
            return value
        if isinstance(value, (set, frozenset)):  # their order may differ between two launches
            return sorted(_digest(self.leaves(part)) for part in value)
        pairs = _pairs(value)
        if pairs is not None:
            return pairs
        self._left_count -= 1
        return (_kind(value), *(_inside(value) if self._left_count >= 0 else ()))


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    """Return whether a value is an array or a scalar of NumPy's with numbers in it, not objects."""
    return _is_numpys(value) and not value.dtype.hasobject


def _is_numpys(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _plain(value: Any) -> bytes:
    """Return the words of a plain value, whatever a class that is derived from it would say."""
    kind: Any = next(kind for kind in _PLAIN if isinstance(value, kind))
    return str(kind.__repr__(value)).encode()


def _kind(value: Any) -> bytes:
    return f"{type(value).__module__}.{type(value).__qualname__}".encode()


def _pairs(value: Any) -> list[Any] | None:
    """Return keys and values of a mapping in turn, None for anything else."""
    methods = (getattr(type(value), name, None) for name in ("keys", "items", "__getitem__"))
    if not isinstance(value, Mapping) and not all(map(callable, methods)):
        return None
    try:
        return [part for pair in value.items() for part in pair]
    except Exception:  # its methods only have these names
        return None


def _inside(value: Any) -> Iterable[Any]:
    """Return what an object consists of, in the same order in each launch."""
    from torch.utils.data import DataLoader, Dataset

    if isinstance(value, (DataLoader, Dataset)):  # where a batch comes from is nothing in it
        return ()
    if isinstance(value, _NAMED):
        return (getattr(value, "__qualname__", value.__name__),)
    if _is_numpys(value):
        return (str(value.dtype), value.shape, value.ravel().tolist())
    # An image, or memory, keeps its content elsewhere than in attributes.
    content = [value.tobytes()] if hasattr(type(value), "tobytes") else []
    attributes = _attributes(value)
    if attributes is None:
        return content or _pickled(value)
    named = sorted(attributes.items(), key=lambda item: str(item[0]))
    return [*content, *(part for item in named for part in item)]


def _attributes(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object, those in slots included; None where it can have none."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, MemberDescriptorType) and name != "__dict__":
                with suppress(AttributeError):  # nothing was assigned yet
                    found[name] = member.__get__(value)
    return found if found or hasattr(value, "__dict__") else None


def _pickled(value: Any) -> Iterable[Any]:
    """Return what an object in C says of itself to those who would make it again."""
    made = value.__reduce_ex__(4)
    if isinstance(made, str):
        return (made,)
    return [list(part) if isinstance(part, Iterator) else part for part in made]


def _digest(leaves: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for leaf in leaves:
        for part in _content(leaf):
            digest.update(part)
    return digest.hexdigest()


def _content(leaf: Any) -> Iterator[bytes]:
    if isinstance(leaf, bytes):
        yield leaf
        return
    try:
        yield f"{leaf.dtype}{tuple(leaf.shape)}".encode()
        if _is_tensor(leaf):
            yield from map(tensor_bytes, _dense(leaf))
        else:
            yield leaf.tobytes()
    except Exception:  # a kind of tensor that we do not know
        yield b"unreadable " + _kind(leaf)


def _dense(tensor: Any) -> list[Any]:
    """Return the tensors with memory of their own that a tensor consists of."""
    import torch

    if tensor.layout == torch.strided:
        return [tensor]
    return [getattr(tensor.detach(), name)() for name in _SPARSE.get(str(tensor.layout), ())]


def _outlined(leaf: Any) -> tuple[str, float, float]:
    try:
        figures = _tensor_figures(leaf) if _is_tensor(leaf) else _array_figures(leaf)
        return f"{leaf.dtype} {tuple(leaf.shape)}", *figures
    except Exception:  # a kind of tensor that we do not know
        return _kind(leaf).decode(), 0.0, 0.0


def _tensor_figures(tensor: Any) -> tuple[float, float]:
    import torch

    values = tensor.detach()
    if values.layout != torch.strided or not values.numel() or values.is_complex():
        return 0.0, 0.0
    values = values.double()
    return float(values.mean()), float(values.std(correction=0))


def _array_figures(array: Any) -> tuple[float, float]:
    if not array.size or array.dtype.kind not in "biuf":
        return 0.0, 0.0
    with sys.modules["numpy"].errstate(all="ignore"):
        values = array.astype("float64")
        return float(values.mean()), float(values.std())


def thinned(tensor: Any) -> Any:
    """Return the values of a tensor as one flat row of float32; of large ones, every n-th."""
    import torch

    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    flat = real.detach().to(torch.float32).contiguous().reshape(-1)
    return flat[:: 1 + flat.numel() // MOST_ELEMENTS_COUNT]


def perturb(parameters: Iterable[Any], *, scale: float, seed: int) -> None:
    """Multiply each weight by 1 + scale or 1 - scale at random, without the script's generator.

    A type without a number that close to 1 uses its nearest one.
    """
    import torch

    generator = torch.Generator("cpu").manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            weights = torch.view_as_real(parameter) if parameter.is_complex() else parameter
            if weights.is_floating_point():
                coin = torch.randint(0, 2, weights.shape, generator=generator, device="cpu")
                least = torch.finfo(weights.dtype).eps
                weights.mul_(1 + max(scale, least) * (coin * 2 - 1).to(weights))
