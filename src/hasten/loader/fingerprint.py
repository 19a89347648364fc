"""What a dataset looks like from outside, cheap enough to check at every batch."""

from __future__ import annotations

from collections import OrderedDict
from dis import get_instructions
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

DEEP = 6
_DEEPEST = 3
_MOST_PARTS = 512
_LONGEST = 64
_SAMPLE_COUNT = 4096
_CONTAINERS = {dict, list, tuple, set}
_FILLED = {*_CONTAINERS, OrderedDict}
_PLAIN = (int, float, str, bytes, bool, type(None))
_DYNAMIC = {"getattr", "vars", "__dict__"}
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_IMPORT = {"IMPORT_NAME", "IMPORT_FROM"}
_KNOWN_COUNT = 4096
_Names = frozenset[str] | None
_NAMES: WeakKeyDictionary[type, dict[CodeType, _Names]] = WeakKeyDictionary()
# Objects from these modules change on their own, or not at all.
_OPAQUE_HOMES = {
    "_io", "_thread", "asyncio", "concurrent", "io", "logging", "mmap", "multiprocessing",
    "pathlib", "queue", "re", "socket", "subprocess", "threading", "weakref",
}  # fmt: skip
_identity = object.__hash__  # as `id`, but no audit hook sees it, of which there is one by then


def fingerprint(
    value: Any, depth: int = 0, *, brief: bool = False, deepest: int = _DEEPEST
) -> list[Any]:
    """Return what a dataset looks like now; workers that saw something else are stale.

    Layer by layer: plain attributes by value, everything else by identity; long containers by the
    identity of their members, tensors by their version counter, arrays by a sample; functions by
    what they are bound to or enclose. Below the third layer, arrays and tensors are only looked at
    from outside, as a model's weights may lie there, and at most a few hundred parts are read.
    Anything deeper is not seen here: a `DatasetSnapshot` looks for it once per pass.

    Args:
        value: the dataset, or a part of it.
        depth: how deep that part lies.
        brief: look at long containers and arrays only from outside, to be fast enough per batch.
        deepest: how many layers to look into.
    """
    tokens: list[Any] = []
    seen: set[int] = set()
    layer = [value]
    for level in range(depth, deepest + 1):
        below: list[Any] = []
        for part in layer:
            if isinstance(part, _PLAIN):
                tokens += type(part), part
                continue
            own = _identity(part)
            tokens.append(own)
            is_deep = level >= _DEEPEST
            if level == deepest or own in seen or (is_deep and len(tokens) > _MOST_PARTS):
                continue
            seen.add(own)
            below += _inside(part, tokens, brief=brief, is_deep=is_deep)
        layer = below
    return tokens


def _inside(value: Any, tokens: list[Any], *, brief: bool, is_deep: bool) -> list[Any]:
    """Note what can be said about a value itself; return what it holds."""
    kind = type(value)
    if isinstance(value, (type, ModuleType)) or is_opaque(kind):
        return []
    if kind in _CONTAINERS:
        tokens.append(len(value))
        if len(value) > _LONGEST:
            tokens.append(brief or _members(value))
            return []
        return [*value.keys(), *value.values()] if kind is dict else list(value)
    if kind is MethodType:
        return _of_method(value, tokens)
    if isinstance(value, (FunctionType, partial)):
        return bound_to(value)
    if not is_deep:
        tokens.append(_writes(value, brief=brief))
    attributes = getattr(value, "__dict__", None)
    if not attributes:
        return []
    names = sorted(attributes)
    tokens.append(tuple(names))
    # A torch module has twenty attributes, most of them empty.
    return [part for name in names if type(part := attributes[name]) not in _FILLED or part]


def _of_method(method: MethodType, tokens: list[Any]) -> list[Any]:
    """Return what a method is bound to; of a whole trainer, only what its code can read."""
    owner, function = method.__self__, method.__func__
    attributes = getattr(owner, "__dict__", None)
    names = _names_of(function.__code__, type(owner)) if type(function) is FunctionType else None
    if names is None or type(attributes) is not dict:
        return [owner, function]
    found = sorted(names & attributes.keys())
    tokens += _identity(owner), tuple(found)
    return [function, *(attributes[name] for name in found)]


def _names_of(code: CodeType, kind: type) -> _Names:
    """Return the names used by a method and the methods it calls; None if they may read any."""
    known = _NAMES.setdefault(kind, {})
    if code not in known:
        names: set[str] = set()
        waiting = [code]
        while waiting:
            fresh = names_in(waiting.pop()) - names
            names |= fresh
            members = [vars(parent).get(name) for parent in kind.__mro__ for name in fresh]
            found = [getattr(one, "fget", getattr(one, "__func__", one)) for one in members]
            waiting += [one.__code__ for one in found if isinstance(one, FunctionType)]
        known[code] = None if names & _DYNAMIC else frozenset(names)
    return known[code]


def names_in(code: CodeType) -> set[str]:
    """Return the names in a piece of code and in the functions that it defines."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


@lru_cache(maxsize=_KNOWN_COUNT)
def globals_in(code: CodeType) -> frozenset[str]:
    """Return which of `names_in` are globals; an attribute of the same name is not one.

    >>> sorted(globals_in(compile("lambda self: self.images - MEAN", "", "eval")))
    ['MEAN']
    """
    names = {one.argval for one in get_instructions(code) if one.opname in _GLOBAL}
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(names).union(*map(globals_in, inner))


@lru_cache(maxsize=_KNOWN_COUNT)
def imports_in(code: CodeType) -> frozenset[str]:
    """Return which of `names_in` are imported by the code itself."""
    names = {one.argval for one in get_instructions(code) if one.opname in _IMPORT}
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(names).union(*map(imports_in, inner))


def is_opaque(kind: type) -> bool:
    """Return whether only the identity of such objects matters: a logger keeps a cache."""
    return kind.__module__.partition(".")[0] in _OPAQUE_HOMES


def _members(value: Any) -> int:
    parts = [*value.keys(), *value.values()] if type(value) is dict else value
    return hash(tuple(map(_identity, parts)))


def bound_to(function: Any) -> list[Any]:
    """Return a method's object, a `partial`'s arguments, or what a function encloses."""
    if isinstance(function, MethodType):
        return [function.__self__, function.__func__]
    if isinstance(function, partial):
        return [function.func, *function.args, *function.keywords.values()]
    enclosed = []
    for cell in function.__closure__ or ():
        try:
            enclosed.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return enclosed


def _writes(value: Any, *, brief: bool) -> Any:
    """Return what changes when a tensor or an array is written in place."""
    kind = type(value)
    try:
        if hasattr(kind, "_version"):
            return value._version
        if not brief and hasattr(kind, "__array_interface__") and kind.__name__ != "memmap":
            flat = value.reshape(-1)
            return hash(flat[:: 1 + flat.size // _SAMPLE_COUNT].tobytes())
    except Exception:  # inference tensors have no version; foreign arrays may raise
        return None
    return None
