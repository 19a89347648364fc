"""Whether the script's code asks for gradients of part of a model, now or later."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from hasten.root_calls.own_code import find_word

if TYPE_CHECKING:
    from types import CodeType

_KEYWORD = "inputs"


@cache
def partial_gradients() -> str:
    """Say where the script calls `autograd.grad`, `retain_grad` or `backward(inputs=...)`.

    Its code is read once, whether it has run or not. Empty where it has none of these.
    """
    return find_word(_asks)


def _asks(code: CodeType) -> str:
    names = set(code.co_names)
    if "retain_grad" in names:
        return "retain_grad"
    if {"autograd", "grad"} <= names:
        return "autograd.grad"
    tuples = [constant for constant in code.co_consts if isinstance(constant, tuple)]
    if "backward" in names and any(_KEYWORD in constant for constant in tuples):
        return f"backward({_KEYWORD}=...)"
    return ""
