"""Whether the script's own code differentiates twice, now or in a later epoch."""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(
    sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_KEYWORD = "create_graph"
_FUNCTIONS = frozenset({"hessian", "hvp", "vhp", "jvp"})


def second_derivatives() -> str:
    """Say where the script's code asks for gradients of gradients; empty where it does not.

    Compiled code has none, and fails where a loss asks for them: a penalty may come in late. So
    the code is read, whether it has run or not; libraries are not.
    """
    for code in _own_code():
        if word := _asks(code):
            return f"{os.path.basename(code.co_filename)} has {word} in {code.co_name}"
    return ""


def _asks(code: CodeType) -> str:
    """Return the word by which code, or a function in it, differentiates twice."""
    for name in code.co_names:
        if name in _FUNCTIONS:
            return name
    for constant in code.co_consts:
        if constant == _KEYWORD or (isinstance(constant, tuple) and _KEYWORD in constant):
            return _KEYWORD
        if isinstance(constant, CodeType) and (word := _asks(constant)):
            return word
    return ""


def _own_code() -> Iterator[CodeType]:
    """Yield the code of the script's functions, and what runs of it now."""
    frame = sys._getframe()
    running = []
    while frame is not None:
        running.append(frame.f_code)
        frame = frame.f_back  # type: ignore[assignment]
    known = [one.__code__ for one in gc.get_objects() if type(one) is FunctionType]
    for code in {id(code): code for code in (*running, *known)}.values():
        if _is_own(code.co_filename):
            yield code


def _is_own(path: str) -> bool:
    """Return whether a file is the script's: not Python's, of no installed package, not ours."""
    if path.startswith("<"):
        return False
    full = os.path.abspath(path)
    return "site-packages" not in full and not full.startswith((*_LIBRARIES, _OWN))
