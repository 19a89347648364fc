"""Where ranks meet that each run the whole script, on one machine or several.

They say what they are about before they exchange a tensor. Ranks that have parted, as where one
has drawn another batch, then learn it from one another, and none waits for what never comes.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import zlib
from contextlib import suppress
from datetime import timedelta
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

from hasten.root_calls.own_code import is_own_file
from hasten.root_calls.ranks.exchange import LostRankError, Meets, layers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hasten.rank import Team

_WORDS_BYTES = 1024
# Tensors this small travel with the words: batch normalization of 256 channels, logits of few
# classes.
_BESIDE_BYTES = 5 * 1024
_LONGEST_WORDS_COUNT = 100
_START_S, _PATIENCE_S = 300.0, 1800.0
_ALIGNMENT_BYTES = 16
CALL, _NORMALIZE = "call a model", "normalize by batch"


class Parted(SystemExit):
    """The ranks cannot go on together; why has been told."""


class Meeting:
    """The ranks of a run, each in a process of its own.

    Args:
        team: which of them this process is.
        tell: takes what the user has to know.
        patience_s: how long to wait for the others: between two calls of a model they may
            evaluate, or write a file.
    """

    def __init__(
        self, team: Team, tell: Callable[[str], None], patience_s: float = _PATIENCE_S
    ) -> None:
        self.rank, self.rank_count = team.rank, team.rank_count
        self._tell = tell
        self._number = 0
        self._is_over = self._have_parted = False
        self._store: Any = None
        self._group: Any = None
        self._sums: Any = None
        try:
            self._join(team, timedelta(seconds=_START_S), timedelta(seconds=patience_s))
        except Exception as error:
            self.part(f"the ranks cannot meet at {team.address}: {_first_line(error)}")

    def _join(self, team: Team, start: timedelta, patience: timedelta) -> None:
        import torch

        dist: Any = torch.distributed
        is_first, count = not team.rank, team.rank_count
        self._store = dist.TCPStore(team.address, team.port, count, is_first, start)
        # A group that is not the script's: `torch.distributed` stays uninitialized.
        self._group = dist.ProcessGroupGloo(self._store, team.rank, count, patience)
        # Sums go on beside all else that the ranks exchange, and so are counted apart.
        apart = dist.PrefixStore("sums", self._store)
        self._sums = dist.ProcessGroupGloo(apart, team.rank, count, patience)
        os.register_at_fork(after_in_child=self._stay)

    def leave(self) -> None:
        """Leave for good."""
        self._is_over = True
        self._group = self._sums = self._store = None

    def end(self) -> None:
        """Leave; end the process at once where a script has taken `Parted` for its own error.

        It would go on without steps, and save a model as if it had been trained.
        """
        self.leave()
        if self._have_parted:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            os._exit(1)

    def _stay(self) -> None:
        """Keep the groups in a forked process: their end would wait for threads of another one."""
        self._is_over, self._have_parted = True, False
        self._keep()

    def _keep(self) -> None:
        for kept in (self._group, self._sums, self._store):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    def meet(self, doing: str, alike: Mapping[str, Any], own: Any = None) -> list[Any]:
        """Say what this rank is about; return what each says for itself.

        Args:
            doing: the same words on all ranks.
            alike: what has to be the same on all ranks, by what it is called.
            own: what may differ; a few numbers.

        Raises:
            LostRankError: a rank cannot do its part; all ranks raise this.
            Parted: they are about different things, or one of them has ended.
        """
        return [row["own"] for row in self._compare(_said(doing, alike, own))[0]]

    def fail(self, error: Exception) -> NoReturn:
        """Tell the others, who are or will be at their next meeting, that this rank fails.

        Raises:
            LostRankError: on this rank, as on the others.
        """
        why = (str(error) or type(error).__name__)[:_LONGEST_WORDS_COUNT]
        self._compare({"failed": why, "at": _own_line()})
        raise AssertionError("a failure was not heard")

    def gather(
        self, doing: str, alike: Mapping[str, Any], tensors: Sequence[Any]
    ) -> tuple[list[list[Any]], list[bool]]:
        """Meet; return the tensors of all ranks, by rank, and which of them need gradients.

        Raises:
            LostRankError: they differ in more than their first dimension; all ranks raise this.
        """
        own = _joined(tensors)
        rows, beside = self._compare(_said(doing, alike, [_outline(one) for one in tensors]), own)
        said = [row["own"] for row in rows]
        if len({tuple(form for _, form, _ in row) for row in said}) > 1:
            raise LostRankError("the shares give tensors of different types or shapes")
        shapes = [_shapes(tensors, [size for size, _, _ in row]) for row in said]
        needed = [
            any(flags) for flags in zip(*([flag for *_, flag in row] for row in said), strict=True)
        ]
        places = [_places(tensors, row) for row in shapes]
        if (most := max(place[-1] for place in places)) > _BESIDE_BYTES:
            beside = self._all_gather(own.resize_(most))
        found = []
        for row, place, shape in zip(beside, places, shapes, strict=True):
            parts = zip(tensors, place, shape, strict=False)
            found.append([_from_bytes(row[start:], like, form) for like, start, form in parts])
        return found, needed

    def begin_sum(self, row: Any) -> Callable[[], None]:
        """Begin to add a row of numbers over the ranks, in place; return how to wait for the end.

        All ranks begin the same sums in the same order, whatever they exchange in between.
        """
        self._check()
        work = self._heard(partial(self._sums.allreduce, [row]))
        return partial(self._heard, work.wait)

    def _compare(self, said: dict[str, Any], own: Any = ()) -> tuple[list[Any], list[Any]]:
        """Return what all ranks say; and the bytes that they give where those are few."""
        import torch

        self._check()
        said = {**said, "number": self._number}
        text = json.dumps(said, ensure_ascii=False).encode(errors="replace")
        if len(text) > _WORDS_BYTES:
            self.fail(ValueError("a call of the model has too many parts"))
        self._number += 1
        words = bytearray(text.ljust(_WORDS_BYTES + _BESIDE_BYTES))
        sent = torch.frombuffer(words, dtype=torch.uint8)
        if 0 < len(own) <= _BESIDE_BYTES:
            sent[_WORDS_BYTES : _WORDS_BYTES + len(own)] = own
        found = self._all_gather(sent)
        rows = [json.loads(bytes(one[:_WORDS_BYTES].tolist())) for one in found]
        for other in rows:
            if "failed" in other:
                raise LostRankError(other["failed"])
        for rank, row in enumerate(rows):
            if not (why := _difference(rows[0], row)):
                continue
            if _NORMALIZE in {one["doing"] for one in rows} <= {_NORMALIZE, CALL}:
                raise LostRankError("the shares normalize by batch at different layers")
            here, there = (f"rank {n} is at {rows[n]['at']}" for n in (0, rank))
            self.part(f"the ranks have parted: {here}, {there}, and {why}")
        return rows, [one[_WORDS_BYTES:] for one in found]

    def _all_gather(self, own: Any) -> list[Any]:
        """Return a tensor of each rank, all of one type and shape."""
        import torch

        found = [torch.empty_like(own) for _ in range(self.rank_count)]
        self._heard(lambda: self._group.allgather([found], [own]).wait())
        return found

    def _check(self) -> None:
        """Raise, or end the process, where this rank has left."""
        if self._is_over:
            self.end()
            raise Parted(1)

    def _heard(self, exchange: Callable[[], Any]) -> Any:
        """Return what an exchange returns; part where the other ranks are gone."""
        try:
            return exchange()
        except Exception as error:
            self.part(f"another rank has ended, or does not answer: {_first_line(error)}")

    def part(self, why: str = "") -> NoReturn:
        """End this rank, which cannot go on with the others, and say why unless that was said.

        Raises:
            Parted: always.
        """
        self._keep()  # their end would wait for sums that other ranks have not begun
        self.leave()
        self._have_parted = True
        if why:
            self._tell(f"hasten: {why}\n")
        raise Parted(1)


class MeetingExchange(Meets):
    """What layers that normalize by batch exchange, among ranks that meet; see `Exchange`."""

    def __init__(self, meeting: Meeting, module: Any) -> None:
        self.layers = layers_of(module)
        self._meeting = meeting

    def all_reduce(self, number: int, own: Any, combine: Callable[[Any], Any]) -> Any:
        """Return what `combine` makes of the numbers of all ranks, as `Exchange.all_reduce`."""
        import torch

        alike = {"layers": number, "channels": len(own)}
        rows, _ = self._meeting.gather(_NORMALIZE, alike, [own])
        return combine(torch.stack([numbers for (numbers,) in rows]))


def checksum(tensors: Sequence[Any]) -> int:
    """Return a checksum of the values of tensors, and of their order."""
    found = 0
    for tensor in tensors:
        raw = _as_bytes(tensor)
        if len(raw):
            found = zlib.crc32((ctypes.c_char * len(raw)).from_address(raw.data_ptr()), found)
    return found


def _as_bytes(tensor: Any) -> Any:
    import torch

    return tensor.detach().resolve_conj().reshape(-1).contiguous().view(torch.uint8)


def _outline(tensor: Any) -> tuple[int, int, bool]:
    """Return the first dimension of a tensor, a checksum of its type and the others, and a flag."""
    form = f"{tensor.dtype} {tensor.dim()} {list(tensor.shape[1:])}"
    size = len(tensor) if tensor.dim() else -1
    return size, zlib.crc32(form.encode()), bool(tensor.requires_grad)


def _shapes(tensors: Sequence[Any], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    pairs = zip(tensors, sizes, strict=True)
    return [(size, *one.shape[1:]) if one.dim() else () for one, size in pairs]


def _joined(tensors: Sequence[Any]) -> Any:
    """Return the bytes of tensors, each at its place."""
    import torch

    places = _places(tensors, [tuple(tensor.shape) for tensor in tensors])
    row = torch.zeros(places[-1], dtype=torch.uint8)
    for tensor, start in zip(tensors, places, strict=False):
        part = _as_bytes(tensor)
        row[start : start + len(part)] = part
    return row


def _places(tensors: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Return where tensors of these shapes begin in a row of bytes, and where the last one ends."""
    places = [0]
    for tensor, shape in zip(tensors, shapes, strict=True):
        size_bytes = prod(shape) * tensor.element_size()
        places.append(places[-1] + -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
    return places


def _from_bytes(row: Any, like: Any, shape: tuple[int, ...]) -> Any:
    return row[: prod(shape) * like.element_size()].view(like.dtype).view(shape)


def _said(doing: str, alike: Mapping[str, Any], own: Any) -> dict[str, Any]:
    return {"doing": doing, "alike": alike, "own": own, "at": _own_line()}


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Say in what two ranks differ; empty for nothing."""
    if one["doing"] != other["doing"] or one["number"] != other["number"]:
        return f"one would {one['doing']}, the other {other['doing']}"
    names = [name for name, value in one["alike"].items() if other["alike"].get(name) != value]
    if names:
        return f"their {names[0]} differ"
    return "" if one["at"] == other["at"] else "their models are called from different lines"


def _own_line() -> str:
    """Return the line of the script that is running."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "its end"
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"[-_LONGEST_WORDS_COUNT:]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
