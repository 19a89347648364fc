"""The script's code, read to see in advance what it may still do."""

from __future__ import annotations

import gc
import os
import re
import sys
import sysconfig
from dis import get_instructions
from functools import cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(
    sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_LAUNCHERS = frozenset({"torch", "accelerate", "lightning"})
STREAMS = ("Stream", "default_stream", "set_stream", "stream")
"""Names in code that may compute on several streams of a device."""


def own_code() -> Iterator[CodeType]:
    """Yield the code of the script's functions and running frames; libraries are left out.

    Code of functions that are made within others is among their constants.
    """
    frame = sys._getframe()
    running = []
    while frame is not None:
        running.append(frame.f_code)
        frame = frame.f_back  # type: ignore[assignment]
    known = [one.__code__ for one in gc.get_objects() if type(one) is FunctionType]
    started = _started()
    own = {path: _is_own(path, started) for path in {one.co_filename for one in (*running, *known)}}
    for code in {id(code): code for code in (*running, *known)}.values():
        if own[code.co_filename]:
            yield code


def mention(words: Iterable[str]) -> str:
    """Say where the script's code has one of these names, if only in a definition; empty if not."""
    known = frozenset(words)
    return find_word(lambda code: min(known & {code.co_name, *code.co_names}, default=""))


def find_word(asks: Callable[[CodeType], str]) -> str:
    """Say where the script's code has a word for which it is searched; empty if nowhere.

    Args:
        asks: returns the word that code has, apart from functions made in it; empty for none.
    """
    for code in own_code():
        if word := _within(code, asks):
            return f"{os.path.basename(code.co_filename)} has {word} in {code.co_name}"
    return ""


def _within(code: CodeType, asks: Callable[[CodeType], str]) -> str:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return asks(code) or next(filter(None, (_within(one, asks) for one in inner)), "")


def _is_own(path: str, started: tuple[str, ...]) -> bool:
    """Return whether a file is the script's: not Python's, of no installed package, not ours.

    The package that was started (`python -m package.train`, or the command that it installs) is
    the script's, wherever it lies.
    """
    if path.startswith("<") and not path.startswith("<ipython"):
        return False
    full = os.path.abspath(path)
    return full.startswith(started) or not (
        _PACKAGES.search(full) or full.startswith((*_LIBRARIES, _OWN))
    )


@cache
def is_own_file(path: str) -> bool:
    """Return whether a file of Python code is the script's."""
    return _is_own(path, _started())


def _started() -> tuple[str, ...]:
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None) or ""
    names = [spec.name] if spec is not None else []
    if spec is None and os.path.dirname(os.path.abspath(file)) == sysconfig.get_path("scripts"):
        names = [one.__module__ for one in vars(main).values() if type(one) is FunctionType]
    tops = {name.partition(".")[0] for name in names} - _LAUNCHERS
    files = (getattr(sys.modules.get(top), "__file__", None) for top in tops)
    return tuple(
        os.path.dirname(one) + os.sep for one in files if one and one.endswith("__init__.py")
    )


# ---- whether the script's code asks for gradients in ways that few do, now or in a later epoch

_TWICE = "create_graph"
_TWICE_BY_NAME = frozenset({"hessian", "hvp", "vhp", "jvp"})


def second_derivatives() -> str:
    """Say where the script's code asks for gradients of gradients; empty if it does not.

    A penalty may be added late, so the code is read, whether it has run or not.
    """
    return find_word(_differentiates_twice)


def _differentiates_twice(code: CodeType) -> str:
    for name in code.co_names:
        if name in _TWICE_BY_NAME:
            return name
    for constant in code.co_consts:
        if constant == _TWICE or (isinstance(constant, tuple) and _TWICE in constant):
            return _TWICE
    by_place = {"autograd", "grad"} <= set(code.co_names) and True in code.co_consts
    return "autograd.grad(..., True)" if by_place and _gives_by_place(code, 5) else ""


def _gives_by_place(code: CodeType, count: int) -> bool:
    """Return whether a call in this code gives so many arguments by place, or a list of them.

    `create_graph` is the fifth argument of `autograd.grad`; a True may be another's, by name.
    """
    names: Any = ()
    constant: Any = None
    for one in get_instructions(code):
        if one.opname == "KW_NAMES":  # up to Python 3.12; it has no `argval`
            names = code.co_consts[one.arg or 0]
        elif one.opname == "LOAD_CONST":
            constant = one.argval
        elif one.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
            names = constant if one.opname == "CALL_KW" else names
            if one.opname == "CALL_FUNCTION_EX" or (one.arg or 0) - len(names) >= count:
                return True
            names = ()
    return False


@cache
def partial_gradients() -> str:
    """Say where the script calls `autograd.grad`, `retain_grad` or `backward(inputs=...)`."""
    return find_word(_differentiates_in_part)


def _differentiates_in_part(code: CodeType) -> str:
    names = set(code.co_names)
    if "retain_grad" in names:
        return "retain_grad"
    if {"autograd", "grad"} <= names:
        return "autograd.grad"
    tuples = [constant for constant in code.co_consts if isinstance(constant, tuple)]
    by_name = "backward" in names and any("inputs" in constant for constant in tuples)
    return "backward(inputs=...)" if by_name else ""
