"""Whether the script's own code differentiates twice, now or in a later epoch."""

from __future__ import annotations

import os
from types import CodeType

from hasten.compile.own_code import own_code

_KEYWORD = "create_graph"
_FUNCTIONS = frozenset({"hessian", "hvp", "vhp", "jvp"})


def second_derivatives() -> str:
    """Say where the script's code asks for gradients of gradients; empty where it does not.

    Compiled code has none, and fails where a loss asks for them: a penalty may come in late. So
    the code is read, whether it has run or not; libraries are not.
    """
    for code in own_code():
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
    by_place = {"autograd", "grad"} <= set(code.co_names) and True in code.co_consts
    return "autograd.grad(..., True)" if by_place else ""
