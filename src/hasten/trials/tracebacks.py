"""Tracebacks as the script would show them: without the frames of hasten's seams."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def trim_uncaught() -> None:
    """Leave our frames out of the traceback of any uncaught exception from now on."""
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for each in _chain(error):
            each.__traceback__ = trimmed(each.__traceback__)
        shown(kind, error, error.__traceback__)

    sys.excepthook = show


def trimmed(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without our frames; one that is all ours stays as it is."""
    kept = []
    ahead = trace
    while ahead is not None:
        if not ahead.tb_frame.f_code.co_filename.startswith(_OWN):
            kept.append(ahead)
        ahead = ahead.tb_next
    result: TracebackType | None = None
    for part in reversed(kept):
        result = TracebackType(result, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return result or trace


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all that it was raised from or holds, each once."""
    ahead: list[BaseException | None] = [error]
    seen: set[int] = set()
    while ahead:
        each = ahead.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        ahead += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
