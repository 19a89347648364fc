"""What is not done for the loaders of a script, and who hears of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Notices:
    """What is not done for some loader, and why, one sentence each.

    Attributes:
        notes: all of them.
        lost_workers: those that are a fault of workers.
        tell: told what the user should hear.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lost_workers: list[str] = []
        self.tell: Callable[[str], object] = lambda why: None

    def note(self, why: str) -> None:
        """Note, once, what is not done."""
        if why not in self.notes:
            self.notes.append(why)

    def lose(self, why: str) -> None:
        """Note that workers failed, where the main process goes on by itself."""
        self.note(why)
        if why not in self.lost_workers:
            self.lost_workers.append(why)

    def refuse(self, why: str) -> None:
        """Note what is not done for want of a proof, and tell it the first time."""
        if why not in self.notes:
            self.tell(why)
        self.note(why)
