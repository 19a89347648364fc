"""Which line of the script made a loader, where its arguments are."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from hasten.instrument.source_lines import is_own_file, line_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from types import FrameType


class LoaderLines:
    """Remember where each living loader was made, where the user's own code made it."""

    def __init__(self) -> None:
        from torch.utils.weak import WeakIdKeyDictionary  # a script's loader may have no hash

        self._lines: MutableMapping[Any, tuple[str, int]] = WeakIdKeyDictionary()

    def note(self, loader: Any) -> None:
        """Note who calls the constructor of `loader`, beyond those of its own classes."""
        makers = [vars(kind).get("__init__") for kind in type(loader).__mro__]
        codes = [getattr(maker, "__code__", None) for maker in makers]
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code in codes:
            frame = frame.f_back
        if frame is not None and is_own_file(frame.f_code.co_filename):
            self._lines[loader] = os.path.abspath(frame.f_code.co_filename), line_of(frame)

    def of(self, dataset_id: int) -> tuple[str, int] | None:
        """Return where the newest loader of a dataset was made; None where a library made it."""
        lines = [line for loader, line in self._lines.items() if id(loader.dataset) == dataset_id]
        return lines[-1] if lines else None
