"""What a trial prints, read as it comes and kept in bounds.

A pipe that nobody reads blocks the writer once 64 KiB lie in it, and a file would fill the disk
of a script that prints for hours; so a thread reads, and keeps the end.
"""

from __future__ import annotations

import os
import selectors
import threading

_KEPT_BYTES = 256 * 1024
_READ_BYTES = 64 * 1024
_LAST_WORDS_S = 5.0


class Output:
    """Both streams of a process, read by a thread until they close."""

    def __init__(self, out: int, err: int) -> None:
        self._all = bytearray()
        self._err = bytearray()
        self._lock = threading.Lock()
        self._streams = (out, err)
        self._thread = threading.Thread(target=self._read, name="hasten-output", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Return the end of standard output and standard error, in the order of arrival."""
        return self._end_of(self._all)

    def errors(self) -> str:
        """Return the end of standard error."""
        return self._end_of(self._err)

    def close(self) -> None:
        """Wait for the last words, but not for a stream that somebody else holds open."""
        self._thread.join(_LAST_WORDS_S)

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            for stream in self._streams:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    part = os.read(key.fd, _READ_BYTES)
                    if part:
                        self._add(key.fd, part)
                    else:
                        selector.unregister(key.fd)
                        os.close(key.fd)

    def _add(self, stream: int, part: bytes) -> None:
        with self._lock:
            for kept in (self._all, self._err) if stream == self._streams[1] else (self._all,):
                kept.extend(part)
                if len(kept) > _KEPT_BYTES + _READ_BYTES:  # each cut moves all that stays
                    del kept[:-_KEPT_BYTES]

    def _end_of(self, kept: bytearray) -> str:
        with self._lock:
            return kept[-_KEPT_BYTES:].decode("utf-8", "replace")
