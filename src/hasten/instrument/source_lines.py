"""Which line of the script made a call."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Where our own files are."""
_LIBRARIES = tuple(
    sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


@cache
def is_own_file(path: str) -> bool:
    """Return whether a file is the user's: not Python's, not an installed package's, not ours.

    Nor is code that a library writes while the script runs, such as PyTorch Geometric's.
    """
    if path.startswith("<"):
        return False
    full = os.path.abspath(path)
    if _PACKAGES.search(full) or full.startswith((*_LIBRARIES, OWN)):
        return False
    return not _is_temporary(full)


def _is_temporary(full: str) -> bool:
    """Return whether a file lies among temporary ones, where the script imports nothing from."""
    folder = getattr(sys.modules.get("tempfile"), "tempdir", None)
    if not isinstance(folder, str) or not _is_within(full, folder):
        return False
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    sources = (os.path.dirname(main), *sys.path)
    return not any(isinstance(one, str) and _is_within(full, one) for one in sources)


def _is_within(full: str, folder: str) -> bool:
    return full.startswith(os.path.join(os.path.abspath(folder), ""))


def line_of(frame: FrameType) -> int:
    """Return the line that a frame is at.

    Some instructions belong to no line (PEP 626), such as the exit of a `with` block:
    for them this is the first line of the function.
    """
    line: int | None = frame.f_lineno
    return frame.f_code.co_firstlineno if line is None else line


def own_place(frame: FrameType | None = None) -> tuple[str, int] | None:
    """Return path and line of the innermost frame of the user's code, from the caller on.

    None where only libraries are on the stack.
    """
    frame = frame or sys._getframe(1)
    while frame is not None:
        if is_own_file(frame.f_code.co_filename):
            return os.path.abspath(frame.f_code.co_filename), line_of(frame)
        frame = frame.f_back
    return None
