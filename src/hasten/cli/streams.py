"""Versions of stdout and stderr that outlive their readers.

`| head` exits early, Ctrl-C also ends `| tee`, and a lost connection takes the terminal away. Even
then the results must be written, and the exit code must stay the right one.
"""

from __future__ import annotations

import codecs
import errno
import io
import sys
from typing import TYPE_CHECKING

from hasten.errors import reason_of

if TYPE_CHECKING:
    from typing import Literal

    from _typeshed import ReadableBuffer

# A pipe without a reader, and a terminal that is gone.
_LEFT = frozenset({errno.EPIPE, errno.EIO})

SPELT_OUT = "hasten"
_PLAIN = {"µ": "u", "…": "..."}


class PersistentStream(io.FileIO):
    """A standard stream that discards what it cannot write.

    Attributes:
        lost: why something was not printed; empty if all was, or if the reader left.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.lost = ""
        self._ended = False

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or silently discard what can no longer be written."""
        if not self._ended:
            try:
                # None means a full non-blocking pipe: given 0, the buffer tries again.
                return super().write(data) or 0
            except OSError as error:
                self._ended = True
                if error.errno not in _LEFT:
                    self.lost = reason_of(error)
        return memoryview(data).nbytes


def _spelt_out(error: UnicodeError) -> tuple[str, int]:
    """Spell the micro sign and the ellipsis in ASCII, and escape whatever else is missing."""
    assert isinstance(error, UnicodeEncodeError)  # noqa: S101  # nothing else is written
    if plain := _PLAIN.get(error.object[error.start]):
        return plain, error.start + 1
    one = UnicodeEncodeError(
        error.encoding, error.object, error.start, error.start + 1, error.reason
    )
    spelt, end = codecs.backslashreplace_errors(one)
    return str(spelt), end


codecs.register_error(SPELT_OUT, _spelt_out)


def keep(name: Literal["stdout", "stderr"]) -> PersistentStream | None:
    """Replace a standard stream by a persistent one; return None if it is not a file.

    What the terminal's encoding cannot show, for example in a script's name, is escaped.
    """
    stream = getattr(sys, name)
    if not isinstance(stream, io.TextIOWrapper):
        return None
    stream.reconfigure(errors=SPELT_OUT)
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if not isinstance(raw, io.FileIO):
        return None
    kept = PersistentStream(raw.fileno())
    text = io.TextIOWrapper(
        io.BufferedWriter(kept),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
    )
    setattr(sys, name, text)
    return kept
