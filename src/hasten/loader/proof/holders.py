"""Who else holds what the items read: the names by which the script can reach it."""

from __future__ import annotations

import argparse
import gc
import sys
import weakref
from bisect import bisect_left
from collections import defaultdict, deque
from contextlib import suppress
from functools import cache, lru_cache, partial
from itertools import compress
from operator import attrgetter
from types import (
    AsyncGeneratorType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    ModuleType,
    SimpleNamespace,
)
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.loader.proof.items import NewBatches
from hasten.loader.proof.source import is_user_class, is_user_file, stored
from hasten.loader.proof.values import is_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hasten.loader.proof.reads import Reads


_MOST_OBJECTS = 2_000_000
_NAMESPACES = (argparse.Namespace, SimpleNamespace)
_FRAMES: dict[type, str] = {
    GeneratorType: "gi_frame", CoroutineType: "cr_frame", AsyncGeneratorType: "ag_frame",
}  # fmt: skip
_OF_CLASSES = (FunctionType, property, classmethod, staticmethod, MemberDescriptorType, type)
_OF_MODULES = ("_parameters", "_buffers", "_modules")
_HOLDING = (list, dict, set, tuple, frozenset, deque, partial, type(lru_cache(int)))
_OPTIMIZED = 1  # CO_OPTIMIZED: the variables of such a frame are its own, not a module's
_Edge = tuple[int, str, bool]


class TooLarge(Exception):
    """There is too much to look through."""


class ReachableNames(NamedTuple):
    """The names by which code can reach what items read.

    Attributes:
        attributes: of objects, that hold what can be written in place.
        variables: of modules and functions, that hold it.
        near: variables from which it, or an object whose attributes are read, can be reached.
        nested: those attributes and variables whose members can be written in turn.
        collecting: those attributes and variables that are containers of what can be written.
        loaders: variables that are a loader with new batches wherever they are any of the above.
        shared: variables that are modules and classes.
        modules: those of the shared variables that are modules.
        leading: attributes by which anything of the above can be reached.
        direct: attributes and variables that are what is read, not only lead to it.
        leaders: names of the classes of objects that lead to what is read.
        iterated: attributes that are such a loader wherever they lead to what is read.
        making: variables that are torch's class of loaders, or its module, wherever they are set.
        collates: variables that are collate functions which copy what they are given.
        nothing: attributes, variables and keys that are None somewhere.
        options: attributes and variables that hold nothing but a namespace, such as `args`.
        alive: names of the script's classes that have instances, and `path:line` of each of
            its functions that exist.
        kinds: names of the classes of what is read, and of their metaclasses.
        leading_to: gives the variables and the attributes that lead to functions at a
            `path:line`; given the name of a method, other than by its class.
    """

    attributes: set[str]
    variables: set[str]
    near: set[str]
    nested: set[str]
    collecting: set[str]
    loaders: set[str]
    shared: set[str]
    modules: set[str]
    leading: set[str]
    direct: set[str]
    leaders: set[str]
    iterated: set[str]
    making: set[str]
    collates: set[str]
    nothing: set[str]
    options: set[str]
    alive: set[str]
    kinds: set[str]
    leading_to: Callable[[str, str], tuple[set[str], set[str]]]


class Heap:
    """What concerns the user's code of all objects that the collector knows, at this moment.

    Attributes:
        suspended: generators and coroutines, of anybody.
        functions: those of the user's files.
        instances: of the user's classes.
    """

    def __init__(self) -> None:
        known = gc.get_objects()  # some hundred thousands: no Python code runs for each of them
        kinds = list(map(type, known))
        users = {kind for kind in set(kinds) if is_user_class(kind)}
        wanted = {FunctionType, *_FRAMES, *users}
        found = list(compress(known, map(wanted.__contains__, kinds)))
        kinds = list(map(type, found))
        self.suspended: list[Any] = list(compress(found, map(_FRAMES.__contains__, kinds)))
        self.instances: list[Any] = list(compress(found, map(users.__contains__, kinds)))
        functions = list(compress(found, map({FunctionType}.__contains__, kinds)))
        paths = list(map(attrgetter("__code__.co_filename"), functions))
        own = set(filter(is_user_file, set(paths)))
        self.functions: list[Any] = list(compress(functions, map(own.__contains__, paths)))


def frames_of_threads(heap: Heap) -> list[FrameType]:
    """Return the frames of the user's code in all threads, the innermost first.

    They include the frames of suspended generators and coroutines.
    """
    found: list[FrameType] = []
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        while at is not None:
            if is_user_file(at.f_code.co_filename):
                found.append(at)
            at = at.f_back
    for one in heap.suspended:
        waiting = getattr(one, _FRAMES[type(one)])
        if waiting is None or waiting in found or not is_user_file(waiting.f_code.co_filename):
            continue
        found.append(waiting)
    return found


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a frame, without leaving a copy of them in it."""
    found = dict(frame.f_locals)
    if frame.f_code.co_flags & _OPTIMIZED and sys.version_info < (3, 13):
        frame.f_locals.clear()
    return found


def user_modules() -> list[ModuleType]:
    """Return the modules that were imported from the user's own files."""
    found = []
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType):
            continue
        path = stored(module, "__file__")
        if name == "__main__" or (path and is_user_file(path)):
            found.append(module)
    return list({id(module): module for module in found}.values())


class _Graph:
    """What the user's code can reach, and by which names.

    Args:
        new_batches: tells which objects give batches that hold nothing of what items read.
    """

    def __init__(self, new_batches: NewBatches) -> None:
        self._new_batches = new_batches
        self.edges: dict[int, list[_Edge]] = {}
        self.arrays: list[Any] = []
        self.loaders: set[int] = set()
        self.nothing: set[str] = set()
        self.kinds: dict[int, type] = {}
        self.functions: defaultdict[str, set[int]] = defaultdict(set)
        self._expanded: set[int] = set()
        self._waiting: list[Any] = []
        self._keep: list[Any] = []

    def add(self, parent: int, name: str, child: Any, *, variable: bool = False) -> None:
        """Note that something holds a child, by a name or none."""
        if child is None:
            self.nothing.add(name)
        if is_atomic(child) and type(child) is not tuple:
            return
        self.edges.setdefault(id(child), []).append((parent, name, variable))
        if id(child) not in self._expanded:
            self._expanded.add(id(child))
            self._waiting.append(child)
            if len(self._expanded) > _MOST_OBJECTS:
                raise TooLarge

    def grow(self) -> None:
        """Follow everything that was added."""
        while self._waiting:
            one = self._waiting.pop()
            self._keep.append(one)  # so that no id is reused
            self.kinds[id(one)] = type(one)
            if type(one) is tuple and all(
                is_atomic(part) and type(part) is not tuple for part in one
            ):
                continue  # a file and its label, say: there may be a million of them
            if is_memory(type(one)):  # type: ignore[arg-type]
                self.arrays.append(one)
                for child in _objects_in(one):
                    self.add(id(one), "", child)
                if not is_user_class(type(one)):
                    continue
            if self._new_batches(one):
                self.loaders.add(id(one))
            for name, child in _parts(one):
                self.add(id(one), name, child)


def _parts(one: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, with the names it uses; none of its own code runs."""
    if isinstance(one, FunctionType):
        if is_user_file(one.__code__.co_filename):
            yield from _enclosed(one)
    elif isinstance(one, type):
        if is_user_class(one):
            yield from list(vars(one).items())
    elif isinstance(one, GeneratorType):
        yield from variables_of(one.gi_frame).items() if one.gi_frame is not None else ()
    elif type(one) in weakref.ProxyTypes or isinstance(one, weakref.ref):
        yield "", _referred(one)
    elif not isinstance(one, (ModuleType, FrameType, CodeType)):
        yield from _of_instance(one)


def _referred(one: Any) -> Any:
    """Return what a weak reference or a proxy refers to; None if it is gone."""
    if isinstance(one, weakref.ref):
        return one()
    with suppress(ReferenceError):
        return one.__repr__.__self__
    return None


def _of_instance(one: Any) -> Iterator[tuple[str, Any]]:
    held = getattr(type(one), "__dictoffset__", 0) and getattr(one, "__dict__", None)
    if isinstance(held, dict):
        yield from list(held.items())
    for kind in filter(is_user_class, type(one).__mro__):
        yield from ((name, part) for name, part in list(vars(kind).items())
                    if not isinstance(part, _OF_CLASSES))  # fmt: skip
        for name in getattr(kind, "__slots__", ()):
            if isinstance(name, str) and name in vars(kind):
                with suppress(AttributeError):
                    yield name, vars(kind)[name].__get__(one, kind)
    if not isinstance(held, dict) or isinstance(one, _HOLDING):
        inside = gc.get_referents(one)
        yield from (("", part) for part in inside if part is not held and part is not type(one))
    yield from _as_attributes(one, held)


def _as_attributes(one: Any, held: Any) -> Iterator[tuple[str, Any]]:
    """Yield the members of an object that are also found as attributes of their name or key."""
    if isinstance(one, tuple):
        yield from zip(getattr(type(one), "_fields", ()), one, strict=False)
    elif isinstance(one, dict):
        is_plain = type(one) is dict  # only what is None has to be known by its key
        yield from ((name, part) for name, part in list(one.items())
                    if isinstance(name, str) and (part is None or not is_plain))  # fmt: skip
    for kept in _OF_MODULES if isinstance(held, dict) else ():
        if isinstance(parts := held.get(kept), dict):
            yield from list(parts.items())


def _objects_in(array: Any) -> Iterator[Any]:
    """Yield the members of an array of objects."""
    if getattr(getattr(array, "dtype", None), "kind", "") == "O":
        yield from array.flat


def _enclosed(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    named = (function.__kwdefaults__ or {}, vars(function))
    yield from (("", part) for part in function.__defaults__ or ())
    yield from (("", part) for held in named for part in held.values())


def names_of(
    reads: Reads,
    loader: Any,
    frames: Iterable[FrameType],
    modules: Iterable[ModuleType],
    heap: Heap,
) -> ReachableNames:
    """Return the names by which the user's code can reach what the items read.

    Raises:
        TooLarge: there is too much to look through.
    """
    new_batches = NewBatches(loader)
    graph = _Graph(new_batches)
    spaces = _add_variables(graph, frames, modules)
    _add_from_heap(graph, heap)
    graph.grow()
    written = set(reads.content) | sharing(list(_all_arrays(reads.content.values())), graph.arrays)
    plain = (list, dict, set, deque, bytearray)
    containers = {key for key, one in reads.content.items() if isinstance(one, plain)}
    attributes, variables, nested, collecting = _direct(graph, written, containers)
    spaced = {key for key, one in reads.content.items() if isinstance(one, _NAMESPACES)}
    options = {name for key in spaced for _, name, _ in graph.edges.get(key, ()) if name}
    options -= set[str]().union(*_direct(graph, written - spaced, containers))
    read = (
        written
        | set(reads.objects)
        | {id(loader), id(loader.dataset)}
        | set(map(id, reads.classes))
        | {id(module) for module in modules if id(vars(module)) in reads.variables}
    )
    loaders = _everywhere(spaces, new_batches)
    shared = {name for space in spaces for name, value in space.items()
              if isinstance(value, (ModuleType, type))}  # fmt: skip
    torchs = [sys.modules["torch.utils.data"], sys.modules["torch.utils.data"].DataLoader]
    making = _everywhere(spaces, _is_one_of(torchs))
    collates = _everywhere(spaces, _is_one_of(new_batches.collates))
    near, leading, iterated, leaders = _near(graph, read)
    direct = {name for one in read for _, name, _ in graph.edges.get(one, ()) if name}
    named = {name for space in spaces for name, value in space.items()
             if isinstance(value, ModuleType)}  # fmt: skip
    kinds = {*reads.classes, *map(type, reads.classes), type(loader), type(loader.dataset),
             *map(type, reads.content.values()), *map(type, reads.objects.values())}  # fmt: skip
    return ReachableNames(
        attributes, variables, near, nested, collecting, loaders, shared, named, leading,
        direct | attributes | variables, leaders, iterated, making, collates,
        graph.nothing, options,
        _named(graph.kinds.values()) | graph.functions.keys(), _named(kinds),
        cache(lambda place, method: _near(graph, graph.functions.get(place, set()), method)[:2]),
    )  # fmt: skip


def _named(kinds: Iterable[type]) -> set[str]:
    """Return the names of classes and of their parents, as they are and as they were written."""
    found: set[str] = set()
    parents = {parent for kind in kinds for parent in kind.__mro__}
    for kind in filter(is_user_class, parents):
        found.add(kind.__name__)
        for one in vars(kind).values():
            if isinstance(one, FunctionType):
                found.add(one.__qualname__.rpartition(".")[0].rpartition(".")[2])
    return found


def _is_one_of(known: list[Any]) -> Callable[[Any], bool]:
    return lambda value: any(value is one for one in known)


def _everywhere(spaces: Iterable[dict[str, Any]], fits: Callable[[Any], bool]) -> set[str]:
    """Return the variables whose values fit in all places where there are any."""
    found: set[str] = set()
    others: set[str] = set()
    for space in spaces:
        for name, value in space.items():
            (found if fits(value) else others).add(name)
    return found - others


def _add_variables(
    graph: _Graph, frames: Iterable[FrameType], modules: Iterable[ModuleType]
) -> list[dict[str, Any]]:
    """Add the variables of frames and modules, and return them.

    To code that has imported a module they are its attributes.
    """
    spaces = {id(module): dict(vars(module)) for module in modules}
    for module in modules:
        for name, value in spaces[id(module)].items() if module.__name__ != "__main__" else ():
            graph.add(id(module), name, value)
    found = [*spaces.values(), *(variables_of(frame) for frame in frames)]
    for space in found:
        for name, value in space.items():
            graph.add(0, name, value, variable=True)
    return found


def _add_from_heap(graph: _Graph, heap: Heap) -> None:
    """Add what the script's functions enclose and its objects hold, whoever holds them."""
    for function in heap.functions:
        code = function.__code__
        graph.functions[f"{code.co_filename}:{code.co_firstlineno}"].add(id(function))
        for name, value in _enclosed(function):
            graph.add(0, name, value, variable=True)
    for one in heap.instances:
        graph.kinds[id(one)] = type(one)
        for name, value in _parts(one):
            graph.add(id(one), name, value)


def _direct(
    graph: _Graph, written: set[int], containers: set[int]
) -> tuple[set[str], set[str], set[str], set[str]]:
    """Return the names that hold what can be written, with only containers in between.

    A part of an array is a view of it; a member of a plain container is what it is.
    """
    attributes: set[str] = set()
    variables: set[str] = set()
    nested: set[str] = set()
    collecting: set[str] = set()
    for start in written:
        seen, waiting = {start}, [(start, start not in containers)]
        while waiting:
            child, is_inside = waiting.pop()
            for parent, name, is_variable in graph.edges.get(child, ()):
                if name:
                    (variables if is_variable else attributes).add(name)
                    if is_inside:
                        nested.add(name)
                    if child != start:
                        collecting.add(name)
                elif parent not in seen:
                    seen.add(parent)
                    waiting.append((parent, True))
    return attributes, variables, nested, collecting


def _near(
    graph: _Graph, read: set[int], method: str = ""
) -> tuple[set[str], set[str], set[str], set[str]]:
    """Return the variables and the attributes that lead to any of some objects.

    A class does not lead to them by the name of the `method` that they are.

    The third set is the attributes that lead there only as loaders;
    the fourth is the names of the classes of the objects in between.
    """
    found: set[str] = set()
    leading: set[str] = set()
    loaders: set[str] = set()
    others: set[str] = set()
    seen, waiting = set(read), list(read)
    while waiting:
        child = waiting.pop()
        for parent, name, is_variable in graph.edges.get(child, ()):
            if is_variable:
                found.add(name)
                continue
            if method and name == method and issubclass(graph.kinds.get(parent, object), type):
                continue
            leading.add(name)
            (loaders if child in graph.loaders else others).add(name)
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    kinds = {
        kind.__name__ for one in seen if one in graph.kinds for kind in graph.kinds[one].__mro__
    }
    return found, leading - {""}, loaders - others, kinds


def _all_arrays(content: Iterable[Any]) -> Iterator[Any]:
    """Yield arrays, and those inside objects of libraries, such as tables."""
    seen: set[int] = set()
    waiting = [one for one in content if not isinstance(one, (list, dict, set))]
    while waiting and len(seen) < _MOST_OBJECTS:
        one = waiting.pop()
        if id(one) in seen or is_atomic(one):
            continue
        seen.add(id(one))
        if is_memory(type(one)):  # type: ignore[arg-type]
            yield one
            base = getattr(one, "base", None)
            if base is not None:
                waiting.append(base)
        elif not isinstance(one, (type, ModuleType, FunctionType)):
            waiting += [part for _, part in _parts(one)]


# ---- which objects are memory of numbers, and where it lies


@cache
def is_memory(kind: Any) -> bool:
    """Return whether objects of a class are memory holding numbers, their own or others'."""
    names = {parent.__name__ for parent in kind.__mro__}
    return bool(names & {"Tensor", "ndarray", "bytearray", "array", "memoryview", "mmap"}) or (
        "_ctypes" in {parent.__module__ for parent in kind.__mro__}
        and bool(names & {"Array", "Structure"})
    )


def span_of(one: Any) -> tuple[int, int] | None:
    """Return where the memory of an array begins and ends."""
    try:
        if hasattr(one, "untyped_storage"):
            storage = one.untyped_storage()
            return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        if not hasattr(one, "__array_interface__"):
            one = sys.modules["numpy"].frombuffer(one, "u1")
        start = one.__array_interface__["data"][0]
        reach = sum((n - 1) * abs(s) for n, s in zip(one.shape, one.strides, strict=True))
        low = sum((n - 1) * s for n, s in zip(one.shape, one.strides, strict=True) if s < 0)
        return start + low, start + low + reach + one.itemsize
    except Exception:  # sparse, meta and quantized tensors have no such memory
        return None


def sharing(read: list[Any], arrays: list[Any]) -> set[int]:
    """Return the arrays and tensors that lie in the memory of others that are read."""
    starts, ends = _merged(span for one in read if (span := span_of(one)))
    files = {str(path) for one in read if (path := getattr(one, "filename", None))}
    found = {id(one) for one in arrays if str(getattr(one, "filename", None)) in files}
    for one in arrays if starts else ():
        if span := span_of(one):
            before = bisect_left(starts, span[1])  # those that begin before this one ends
            if before and span[0] < ends[before - 1]:
                found.add(id(one))
    return found


def _merged(spans: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return where the memory of spans begins and where it ends, without overlaps, in order.

    >>> _merged([(5, 9), (1, 3), (7, 12), (4, 4)])
    ([1, 5], [3, 12])
    """
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted(spans):
        if ends and start <= ends[-1]:
            ends[-1] = max(end, ends[-1])
        elif start < end:
            starts.append(start)
            ends.append(end)
    return starts, ends
