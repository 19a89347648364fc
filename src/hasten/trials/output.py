"""What a trial prints, read as it comes and kept in bounds.

A pipe that nobody reads blocks the writer once 64 KiB lie in it, and a file would fill the disk
of a script that prints for hours; so a thread reads, and keeps the beginning and the end.
"""

from __future__ import annotations

import os
import selectors
import threading

_HEAD_BYTES = 64 * 1024
_TAIL_BYTES = 256 * 1024
_READ_BYTES = 64 * 1024
_LAST_WORDS_S = 5.0


class Bounded:
    """The first and the last bytes of a stream, and how many lie between."""

    def __init__(self, *, head_bytes: int, tail_bytes: int) -> None:
        self.head = bytearray()
        self.tail = bytearray()
        self.dropped_bytes = 0
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes

    def add(self, part: bytes) -> None:
        """Append to the stream."""
        room = self._head_bytes - len(self.head)
        self.head += part[:room]
        self.tail += part[max(0, room) :]
        excess = len(self.tail) - self._tail_bytes
        if excess > _READ_BYTES:  # in large pieces: each cut moves the whole tail
            self.dropped_bytes += excess
            del self.tail[:excess]

    def text(self) -> str:
        """Return the stream; a line in the gap says how much is missing."""
        tail, dropped = bytes(self.tail), self.dropped_bytes
        over = max(0, len(tail) - self._tail_bytes)
        gap = f"\n... {dropped + over} bytes left out ...\n" if dropped + over else ""
        return _decoded(bytes(self.head)) + gap + _decoded(tail[over:])


class Output:
    """Both streams of a process, read by a thread until they close."""

    def __init__(self, out: int, err: int) -> None:
        self._all = Bounded(head_bytes=_HEAD_BYTES, tail_bytes=_TAIL_BYTES)
        self._err = Bounded(head_bytes=0, tail_bytes=_TAIL_BYTES)
        self._lock = threading.Lock()
        self._streams = (out, err)
        self._thread = threading.Thread(target=self._read, name="hasten-output", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Return standard output and standard error, in the order of arrival."""
        with self._lock:
            return self._all.text()

    def errors(self) -> str:
        """Return the end of standard error."""
        with self._lock:
            return self._err.text()

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
            self._all.add(part)
            if stream == self._streams[1]:
                self._err.add(part)


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")
