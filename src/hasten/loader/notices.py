"""What is not done for a script's loaders, and who is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def said(error: BaseException) -> str:
    """Return the class of an exception, and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


class Notices:
    """What is not done for a loader, and why, one sentence each.

    Attributes:
        notes: all of them.
        tell: called with what the user should be told.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.tell: Callable[[str], object] = lambda why: None

    def note(self, why: str) -> None:
        """Note, once, what is not done."""
        if why not in self.notes:
            self.notes.append(why)

    def refuse(self, why: str) -> None:
        """Note what is not done, for lack of a proof or since it went wrong; tell the user once."""
        if why not in self.notes:
            self.tell(why)
        self.note(why)
