"""How much of autograd's graph is alive, and which variable of the script holds it."""

from __future__ import annotations

import ast
import ctypes
import gc
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from hasten.instrument.source_lines import is_own_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

_MOST_NODES_COUNT = 100_000
_MOST_VALUES_COUNT = 10_000


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    import torch

    # isinstance would ask proxies for the class of what they wrap.
    return (value for value in values if issubclass(type(value), torch.Tensor))


def node_count(tensors: Iterable[Any]) -> int:
    """Return how many nodes of the graph some tensors keep alive, counting to about 100,000."""
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting and len(seen) < _MOST_NODES_COUNT:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return len(seen)


def live_node_count() -> int:
    """Return how many nodes of the graph are kept alive by all tensors that Python tracks."""
    return node_count(_tensors(gc.get_objects()))


def largest_holder() -> tuple[str, str, int] | None:
    """Return file, name and node count of the script's variable that holds most of the graph."""
    found: list[tuple[int, str, str]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if is_own_file(path):
            for name, value in _variables(frame):
                count = node_count(_tensors(_inside(value)))
                found.append((count, path, name))
        frame = frame.f_back
    count, path, name = max(found, default=(0, "", ""))
    return (path, name, count) if count else None


def _variables(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the variables of a frame, and of the objects in them, without a trace.

    Before Python 3.13, `frame.f_locals` of a function writes into the same dict that the script
    has from `locals()`. 3.12 can be asked for one variable; 3.11 cannot.
    """
    code = frame.f_code
    if code.co_name == "<module>":
        own = list(frame.f_globals.items())
    elif sys.version_info >= (3, 13):
        own = list(frame.f_locals.items())
    elif sys.version_info >= (3, 12):
        own = [(name, _variable(frame, name)) for name in (*code.co_varnames, *code.co_cellvars)]
    else:
        own = []
    parts = [
        (f"{name}.{part}", value)
        for name, holder in own
        if is_own_file(getattr(sys.modules.get(type(holder).__module__), "__file__", None) or "<")
        for part, value in getattr(holder, "__dict__", {}).items()
    ]
    return [*own, *parts]


def _variable(frame: FrameType, name: str) -> Any:
    """Return a variable of a running function, None where it is not set yet."""
    get = ctypes.pythonapi.PyFrame_GetVarString
    get.restype, get.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_char_p)
    try:
        return get(frame, name.encode())
    except (NameError, AttributeError):
        return None


def _inside(value: Any) -> list[Any]:
    """Return a value, or what a list, tuple, deque or dict of them holds."""
    if type(value) in (list, tuple, deque):
        return list(value)[:_MOST_VALUES_COUNT]
    if type(value) is dict:
        return list(value.values())[:_MOST_VALUES_COUNT]
    return [value]


def lines_that_add(source: str, name: str) -> list[int]:
    r"""Return the lines that add to a variable: `x += y`, `x = x + y`, `x.append(y)`.

    >>> lines_that_add("total = 0\ntotal += loss\nmeter.seen.append(loss)", "total")
    [2]
    >>> lines_that_add("total = 0\ntotal += loss\nmeter.seen.append(loss)", "meter.seen")
    [3]
    """
    last = name.rpartition(".")[2]

    def is_it(node: ast.AST) -> bool:
        return last in (getattr(node, "id", None), getattr(node, "attr", None))

    def adds(node: ast.AST) -> bool:
        if isinstance(node, ast.AugAssign):
            return is_it(node.target)
        if isinstance(node, ast.Assign):
            return any(map(is_it, node.targets)) and any(map(is_it, ast.walk(node.value)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return node.func.attr in ("append", "appendleft", "extend") and is_it(node.func.value)
        return False

    return sorted({node.lineno for node in ast.walk(ast.parse(source)) if adds(node)})  # type: ignore[attr-defined]
