"""How parent and child talk: messages of `protocol` over a socket in the scratch folder.

A socket with a name, not an inherited pipe: `bash train.sh`, `accelerate launch` and
multiprocessing close the descriptors that they did not open, but they keep the environment.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from hasten import protocol
from hasten.errors import ChildLost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hasten.protocol import Message

_M = TypeVar("_M")
_R = TypeVar("_R", protocol.FirstStep, protocol.Recorded)
_CREDENTIALS = struct.Struct("3i")  # pid, user and group (unix(7))
_CHUNK_BYTES = 1 << 16
_LONGEST_S = 1e9  # a socket takes no more than a few times that
_REMEDY = "Run the same hasten in parent and child."


class Channel:
    """One end of a conversation.

    Attributes:
        connection: the socket.
        pid: the process at the other end, once it has said so.
    """

    def __init__(self, connection: socket.socket, own_pid: int | None = None) -> None:
        self.connection = connection
        self.pid: int | None = None
        self._own_pid = own_pid
        self._rest = b""

    @classmethod
    def connect(cls, path: str) -> Channel:
        """Return the child's end of the conversation at `path`."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        return cls(connection, os.getpid())

    def send(self, message: Message) -> None:
        """Send one message.

        Raises:
            ChildLost: the other side is gone.
        """
        line = protocol.encode(message, self._own_pid)
        try:
            self.connection.sendall(line)
        except OSError as error:
            raise ChildLost(f"The child cannot be reached: {error}.", remedy="Try again.") from None

    def receive(self, timeout_s: float | None = None) -> Message:
        """Return the next message.

        Raises:
            ChildLost: the other side is gone, or speaks another protocol.
            TimeoutError: nothing came in `timeout_s` seconds.
        """
        self.connection.settimeout(timeout_s)
        while not self.has_message:
            self._rest += self._more()
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            message, pid = protocol.decode(line)
        except ValueError as error:
            raise ChildLost(f"The child cannot be understood: {error}.", remedy=_REMEDY) from None
        if pid is not None:  # the child's own view; it may be in another namespace
            self.pid = self.peer_pid or pid
        return message

    def hear(self, timeout_s: float) -> Message | None:
        """Return the next message; None where none comes in time, which may be infinite.

        Raises:
            ChildLost: the other side is gone, or speaks another protocol.
        """
        try:
            return self.receive(None if timeout_s > _LONGEST_S else timeout_s)
        except TimeoutError:
            return None

    @property
    def has_message(self) -> bool:
        """Whether a message has arrived that was not received yet."""
        return b"\n" in self._rest

    def _more(self) -> bytes:
        try:
            found = self.connection.recv(_CHUNK_BYTES)
        except TimeoutError:
            raise
        except OSError:
            found = b""
        if not found:
            raise ChildLost("The child closed the conversation.", remedy="See its output.")
        return found

    def ask(self, message: Message) -> Message:
        """Send `message` and return the answer."""
        self.send(message)
        return self.receive()

    @property
    def peer_pid(self) -> int:
        """The process at the other end as the kernel knows it."""
        found = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(found)[0])

    def close(self) -> None:
        """End the conversation."""
        self.connection.close()


class Listener:
    """The parent's end before it knows which process will train."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self.attached: list[Message] = []
        self._ranks: list[Any] = []

    @property
    def pids(self) -> list[int]:
        """The processes that have introduced themselves and are still connected."""
        ends = [key.data for key in self._selector.get_map().values()]
        return [end.pid for end in ends if isinstance(end, Channel) and end.pid is not None]

    def adopt(
        self, kind: type[_M], *, until: float, alive: Callable[[], bool]
    ) -> tuple[Channel, _M] | None:
        """Wait for the first process that sends a message of `kind`; return its conversation.

        Every process that imports torch introduces itself; only one of them trains. One that is
        ready to train is told to go on. Once `alive` is False, the waiting ends after what was
        already said has been read.
        """
        while True:
            living = alive()
            for key, _ in self._selector.select(0.1 if living else 0.0):
                if key.fileobj is self._socket:
                    channel = Channel(self._socket.accept()[0])
                    self._selector.register(channel.connection, selectors.EVENT_READ, channel)
                    continue
                found = self._read(key.data, kind)
                if found is not None:
                    return key.data, found
            if not living or time.monotonic() > until:
                return None

    def adopt_ranks(
        self, kind: type[_R], *, until: float, alive: Callable[[], bool]
    ) -> list[tuple[Channel, _R]] | None:
        """Wait as `adopt` does, then for the other ranks of the same training.

        Returns:
            Their conversations in the order of the ranks; None where one of them is missing, for
            which a later call goes on waiting.
        """
        ranks: list[tuple[Channel, _R]] = self._ranks
        while not ranks or len(ranks) < ranks[0][1].rank_count:
            found = self.adopt(kind, until=until, alive=alive)
            if found is None:
                return None
            ranks.append(found)
        return sorted(ranks, key=lambda pair: pair[1].rank)

    @property
    def rank_counts(self) -> tuple[int, int]:
        """How many ranks `adopt_ranks` has heard so far, and of how many; 0 of 0 before any."""
        ranks = self._ranks
        return (len(ranks), ranks[0][1].rank_count) if ranks else (0, 0)

    def _read(self, channel: Channel, kind: type[_M]) -> _M | None:
        """Read all that a process has sent: messages that came together are announced only once."""
        while True:
            try:
                message = channel.receive(5.0)
            except (ChildLost, TimeoutError):
                self._selector.unregister(channel.connection)
                channel.close()
                return None
            if isinstance(message, kind):
                self._selector.unregister(channel.connection)
                return message
            if isinstance(message, protocol.Ready):
                with suppress(ChildLost):  # its end is seen at the next read
                    channel.send(protocol.Go())
            else:
                self.attached.append(message)
            if not channel.has_message:
                return None

    def close(self) -> None:
        """Stop listening; conversations that were adopted go on."""
        if self._socket.fileno() < 0:
            return
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Channel):
                key.data.close()
        self._selector.close()
        self._socket.close()
        self.path.unlink(missing_ok=True)
