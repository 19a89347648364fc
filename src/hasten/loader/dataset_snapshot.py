"""What a loader's items are made with, as deep as one can look, once per pass.

`fingerprint` is cheap enough for every batch. Between passes a script may change anything: the
size of a transform inside a `Compose`, a global that the dataset's code names, one pixel of an
array. Persistent workers and kept samples would miss that.
"""

from __future__ import annotations

import array
import operator
import sys
import time
import weakref
import zlib
from collections import deque
from functools import partial
from itertools import chain
from marshal import dumps
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.loader.cache.purity import is_followed, is_own_file
from hasten.loader.fingerprint import bound_to, globals_in, is_opaque, names_in
from hasten.loader.proof.kinds import format_of, is_arrow_table
from hasten.loader.random_states import is_generator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Way = Callable[["_SnapshotTaker", Any], Iterable[Any]]

_DEEPEST = 8
_CHUNK_COUNT = 1024
_TICK_COUNT = 256
_POINTER_BYTES = 8
_MARSHAL_VERSION = 2  # later ones tell equal values apart by who else refers to them
_PLAIN = {int, float, complex, str, bytes, bool, type(None)}
_SEQUENCES = (list, tuple, set, frozenset, deque)
_BUFFERS = (bytearray, array.array, memoryview)
_WRAPPED = ("__func__", "fget", "fset")


class DatasetSnapshot:
    """A look at what the items of a loader are made with.

    Two are equal if no difference was seen. It looks into attributes and slots, containers
    of any length, arrays and tensors byte by byte, the arguments of partial functions, the
    objects of bound methods, closures, defaults, the globals that functions name, and the
    attributes of classes, but not the code of torch or of the standard library. Objects are held
    weakly where possible, since some hold the loader.

    Args:
        most_s: CPU seconds that it may take.
        most_bytes: bytes of arrays and tensors that it may read.

    Attributes:
        is_whole: whether it finished within its limits. One that did not equals no other.
    """

    def __init__(self, *roots: Any, most_s: float, most_bytes: int) -> None:
        painter = _SnapshotTaker(most_s, most_bytes)
        try:
            painter.paint(roots)
        except Exception:  # foreign objects may raise anything, or change meanwhile
            self._tokens: list[Any] | None = None
        else:
            self._tokens = painter.tokens
        self.is_whole = self._tokens is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DatasetSnapshot) or not (self.is_whole and other.is_whole):
            return False
        return self._tokens == other._tokens

    __hash__ = None  # type: ignore[assignment]


class _TooMuch(Exception):
    """A look would exceed its limits."""


class _Row:
    """Values: equal where each is the same object, or all are plain and bit-identical."""

    __slots__ = ("values",)

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = tuple(values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Row) or len(self.values) != len(other.values):
            return False
        if all(map(operator.is_, self.values, other.values)):
            return True
        try:
            return dumps(self.values, _MARSHAL_VERSION) == dumps(other.values, _MARSHAL_VERSION)
        except ValueError:  # opaque ones are among them
            return all(map(_is_same, self.values, other.values))

    __hash__ = None  # type: ignore[assignment]


class _Itself:
    """An object that equals nothing but itself."""

    __slots__ = ("_of",)

    def __init__(self, value: Any) -> None:
        self._of: Callable[[], Any]
        try:
            self._of = weakref.ref(value)
        except TypeError:
            self._of = lambda: value

    def __eq__(self, other: object) -> bool:
        mine = self._of()
        return isinstance(other, _Itself) and mine is not None and mine is other._of()

    __hash__ = None  # type: ignore[assignment]


class _SnapshotTaker:
    """Walks through objects layer by layer, each once, and notes what it sees."""

    def __init__(self, most_s: float, most_bytes: int) -> None:
        self.tokens: list[Any] = []
        self._until_s = time.thread_time() + most_s
        self._left_bytes = most_bytes
        self._left_count = _TICK_COUNT
        self._places: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no other object reuses their addresses
        self._ways: dict[type, Way] = {}
        self._followed: dict[type, bool] = {}

    def paint(self, roots: Iterable[Any]) -> None:
        """Look at the roots and at what they hold."""
        layer = list(roots)
        for _ in range(_DEEPEST):
            layer = [below for value in layer for below in self._look(value)]
        for value in layer:
            self._opaque(value)

    def _look(self, value: Any) -> Iterable[Any]:
        """Note a value; return what is to be looked at below it."""
        self._tick()
        kind = type(value)
        if kind in _PLAIN:
            return self._opaque(value)
        place = self._places.get(id(value))
        if place is not None:
            self.tokens.append(place)
            return ()
        self._places[id(value)] = len(self._kept)
        self._kept.append(value)
        way = self._ways.get(kind)
        if way is None:
            way = self._ways[kind] = self._way(value)
        return way(self, value)

    @classmethod
    def _way(cls, value: Any) -> Way:
        """Return how values of this type are looked at."""
        import torch

        if isinstance(value, ModuleType) or is_generator(value):
            return cls._opaque
        if is_arrow_table(value):
            return cls._table
        numpy: Any = sys.modules.get("numpy")
        pandas: Any = sys.modules.get("pandas")
        ways: tuple[tuple[Any, Way], ...] = (
            (type, cls._class),
            (FunctionType, cls._function),
            ((MethodType, partial), cls._bound),
            (_BUFFERS, cls._buffer),
            ((numpy.ndarray, numpy.generic) if numpy else (), cls._array),
            ((pandas.DataFrame, pandas.Series, pandas.Index) if pandas else (), cls._frame),
            (torch.Tensor, cls._tensor),
            (_SEQUENCES, cls._sequence),
            (dict, cls._mapping),
        )
        return next((way for kinds, way in ways if isinstance(value, kinds)), cls._object)

    def _tick(self) -> None:
        self._left_count -= 1
        if self._left_count < 0:
            self._left_count = _TICK_COUNT
            if time.thread_time() > self._until_s:
                raise _TooMuch

    def _take(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise _TooMuch

    def _opaque(self, value: Any) -> Iterable[Any]:
        self.tokens.append(_Row((value,)) if type(value) in _PLAIN else _Itself(value))
        return ()

    # ---- code

    def _follows(self, kind: type) -> bool:
        found = self._followed.get(kind)
        if found is None:
            found = self._followed[kind] = is_followed(kind)
        return found

    def _class(self, kind: type) -> Iterable[Any]:
        self.tokens.append(_Itself(kind))
        below: list[Any] = []
        for parent in filter(self._follows, kind.__mro__):
            own = {name: value for name, value in vars(parent).items() if _tells(name, value)}
            self.tokens.append(_Row(own))
            below += [part for value in own.values() for part in _unwrapped(value)]
        return below

    def _function(self, function: FunctionType) -> Iterable[Any]:
        code, space = function.__code__, function.__globals__
        self.tokens += [_Itself(function), _Itself(code)]
        below = [*bound_to(function), *(function.__defaults__ or ())]
        below += [*(function.__kwdefaults__ or {}).values(), *vars(function).values()]
        if not is_own_file(code.co_filename):
            return below
        names = sorted(names_in(code))
        found = [(name, space[name]) for name in sorted(globals_in(code)) if name in space]
        for module in [value for _, value in found if isinstance(value, ModuleType)]:
            inside = vars(module)
            found += [(name, inside[name]) for name in names if name in inside]
        self.tokens.append(_Row(name for name, _ in found))
        return [*below, *(value for _, value in found)]

    def _bound(self, value: Any) -> Iterable[Any]:
        self.tokens.append(type(value).__name__)
        if isinstance(value, partial):
            self.tokens.append(_Row(value.keywords))
        return bound_to(value)

    # ---- memory

    def _buffer(self, value: Any) -> Iterable[Any]:
        view = memoryview(value)
        self._take(view.nbytes)
        self.tokens.append((type(value).__name__, view.nbytes, zlib.crc32(view)))
        return ()

    def _array(self, value: Any) -> Iterable[Any]:
        numpy: Any = sys.modules["numpy"]
        if isinstance(value, numpy.memmap):
            return self._opaque(value)  # workers read the same file
        self.tokens.append((type(value).__name__, value.shape, str(value.dtype), value.strides))
        self._take(value.nbytes)
        if value.dtype.hasobject:
            return [value.tolist()]
        if value.nbytes:
            flat = numpy.ascontiguousarray(value).reshape(-1)
            self.tokens.append(zlib.crc32(flat.view(numpy.uint8)))
        return list(getattr(value, "__dict__", {}).values())

    def _frame(self, value: Any) -> Iterable[Any]:
        """Note a pandas table, column or index; their values lie in C objects."""
        numpy: Any = sys.modules["numpy"]
        self.tokens.append(type(value).__name__)  # its index may be a different object each time
        self._take(int(numpy.sum(value.memory_usage())))
        if not hasattr(value, "columns"):
            return [value.name, getattr(value, "index", None), value.to_numpy()]
        names = range(len(value.columns))
        return [value.columns, value.index, *(value.iloc[:, name].to_numpy() for name in names)]

    def _table(self, value: Any) -> Iterable[Any]:
        """Note a dataset in files of Arrow: its library tells by a text how it was made."""
        self.tokens += [_Itself(value), value._fingerprint]
        return format_of(value).values()

    def _tensor(self, value: Any) -> Iterable[Any]:
        import torch

        traits = value.shape, value.dtype, value.device, value.layout, value.requires_grad
        self.tokens.append((type(value).__name__, *map(str, traits)))
        self.tokens.append(None if value.is_inference() else value._version)
        if value.layout is not torch.strided or value.device.type != "cpu":
            return self._opaque(value)
        self._take(value.nbytes)
        self.tokens.append(value.stride())
        if value.numel():
            plain = value.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
            flat = plain.contiguous().as_strided((plain.numel(),), (1,))
            self.tokens.append(zlib.crc32(flat.view(torch.uint8).numpy()))
        return list(vars(value).values())

    # ---- containers and objects

    def _sequence(self, value: Any) -> Iterable[Any]:
        base = next(base for base in _SEQUENCES if isinstance(value, base))
        below = self._members(base, list(base.__iter__(value)))
        return below if type(value) is base else [*below, *self._object(value)]

    def _mapping(self, value: Any) -> Iterable[Any]:
        below = self._members(dict, [*dict.keys(value), *dict.values(value)])
        return below if type(value) is dict else [*below, *self._object(value)]

    def _object(self, value: Any) -> Iterable[Any]:
        kind = type(value)
        self.tokens.append(_Itself(value))
        if is_opaque(kind) or hasattr(kind, "__next__"):
            return ()
        attributes = _attributes(value)
        below = self._members(kind, [*attributes, *attributes.values()])
        return [*below, kind] if self._follows(kind) else below

    def _members(self, kind: type, members: list[Any]) -> list[Any]:
        """Note the values that a row compares; return the others."""
        self.tokens.append((kind.__name__, len(members)))
        self._take(_POINTER_BYTES * len(members))
        below: list[Any] = []
        for start in range(0, len(members), _CHUNK_COUNT):
            self._tick()
            part = members[start : start + _CHUNK_COUNT]
            if _is_row(part):
                self.tokens.append(_Row(part))
            else:
                below += part
        return below


def _is_same(one: Any, other: Any) -> bool:
    if one is other or type(one) is not type(other):
        return one is other
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_is_same, one, other))
    return type(one) in _PLAIN and dumps(one, _MARSHAL_VERSION) == dumps(other, _MARSHAL_VERSION)


def _is_row(values: list[Any]) -> bool:
    """Return whether a row compares these: plain and opaque values, or tuples of them."""
    inner = set(map(type, chain.from_iterable(one for one in values if type(one) is tuple)))
    return all(map(_fits_row, inner | (set(map(type, values)) - {tuple})))


def _fits_row(kind: type) -> bool:
    """Return whether values of a type are compared as wholes; weak references are for others."""
    return kind in _PLAIN or (is_opaque(kind) and not kind.__weakrefoffset__)


def _tells(name: str, value: Any) -> bool:
    """Return whether an attribute of a class can matter to an item."""
    return not name.startswith("__") or isinstance(value, FunctionType)


def _unwrapped(value: Any) -> list[Any]:
    """Return the functions of a property, a static or a class method; else the value itself."""
    if isinstance(value, (property, staticmethod, classmethod)):
        return [getattr(value, name) for name in _WRAPPED if hasattr(value, name)]
    return [] if isinstance(value, MemberDescriptorType) else [value]


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes and slots without running any code of its class."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = {}
    for parent in type(value).__mro__:
        slots = vars(parent).items() if "__slots__" in vars(parent) else ()
        for name, member in slots:
            if isinstance(member, MemberDescriptorType):
                try:
                    found[name] = member.__get__(value)
                except AttributeError:  # not set
                    continue
    return found
