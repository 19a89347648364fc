"""Keep torch's compiler away from our own frames.

Dynamo looks at every Python frame that runs beneath a compiled function, even after a graph
break. It skips torch's own module calls by their file; ours replace those calls, so they
must be skipped too, or the script gets different graphs than without us.
"""

from __future__ import annotations

import sys
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Hook = TypeVar("Hook", bound="Callable[..., Any]")
_OURS = ("hasten.instrument", "hasten.root_calls", "hasten.loader", "hasten.levers")


def uncompiled(hook: Hook) -> Hook:
    """Mark a hook that torch calls, so that Dynamo does not trace it within a compiled step."""
    vars(hook)["_torchdynamo_disable"] = True
    return hook


def stay_eager() -> None:
    """Mark every function of ours that is imported; frames beneath them are looked at as usual.

    The marks belong to torch's C part: nothing of Dynamo is imported for them.
    """
    skip = _skipper()
    if skip is None:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith(_OURS):
            for value in list(vars(module).values()):
                for code in _codes(value, name):
                    skip(code)


def _skipper() -> Callable[[CodeType], object] | None:
    """Return the function that marks a code object; None where this torch has neither form."""
    import torch

    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):  # up to torch 2.6
        skip: Callable[[CodeType], object] = frames.skip_code
        return skip
    if not hasattr(frames, "set_code_exec_strategy"):
        return None
    action = frames._FrameAction
    passing = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
    return lambda code: frames.set_code_exec_strategy(code, passing)


def _codes(value: Any, home: str) -> Iterator[CodeType]:
    if isinstance(value, FunctionType) and value.__module__ == home:
        yield from _nested(value.__code__)
    elif isinstance(value, type) and value.__module__ == home:
        for part in vars(value).values():
            yield from _codes(part.fget if isinstance(part, property) else part, home)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _nested(part)
