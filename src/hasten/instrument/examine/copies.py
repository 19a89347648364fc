"""Copies from the CPU to an accelerator: from which memory, who waits, how long they take."""

from __future__ import annotations

import time
from contextlib import ExitStack
from threading import get_ident
from typing import TYPE_CHECKING, Any

from hasten.instrument import accelerators, source_lines
from hasten.instrument.ledger import INDEX
from hasten.instrument.stand_ins import StandIns
from hasten.records import Phase

if TYPE_CHECKING:
    from hasten.instrument.watch import Watch

_DATA = INDEX[Phase.DATA]  # a loader without workers pins there, as it was told to
_SMALL_BYTES = 1 << 16  # below that a copy says nothing about the rate


class _Copy:
    """Copies of one kind: the time of each, its bytes, its step, its line.

    Args:
        waits: whether a copy waits for the kernels before it, which is not its own cost. The
            fastest one did not wait, so none is charged more than its bytes take at that rate.
    """

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self.seen: list[tuple[int, float, int]] = []
        self.lines: dict[tuple[str, int], float] = {}

    def add(self, step: int, taken_s: float, count_bytes: int) -> None:
        """Take in one copy."""
        self.seen.append((step, taken_s, count_bytes))
        place = source_lines.own_place()
        if place is not None:
            self.lines[place] = self.lines.get(place, 0.0) + taken_s

    def read(self, step_count: int) -> dict[str, Any] | None:
        """Return seconds per step and the lines, costliest first; None without a copy."""
        rates = [size / taken_s for _, taken_s, size in self.seen if size >= _SMALL_BYTES]
        if not rates:
            return None
        seconds = [0.0] * step_count
        for step, taken_s, size in self.seen:
            if step < step_count:
                seconds[step] += min(taken_s, size / max(rates)) if self._waits else taken_s
        return {
            "step_s": seconds,
            "step_bytes": sum(size for *_, size in self.seen) / max(1, step_count),
            "lines": sorted(self.lines, key=lambda place: -self.lines[place]),
        }


class Copies:
    """Time the copies of the loop's thread, if the script uses an accelerator."""

    def __init__(self, watch: Watch) -> None:
        import torch

        self._watch = watch
        self._step_count = 0
        waits = {"pageable": True, "blocking": True, "pinning": False}
        self._kinds = {name: _Copy(waits=each) for name, each in waits.items()}
        self._undos = ExitStack()
        if accelerators.in_use():
            stand_ins = StandIns(lambda: get_ident() == self._watch.thread)
            self._undos.callback(self._watch.live.on_transfer(self._moved))
            self._undos.callback(stand_ins.add(torch.Tensor, "pin_memory", self._pinned))

    def _moved(self, original: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
        import torch

        if not tensor.is_cpu:
            return original(tensor, *args, **kwargs)
        start = time.perf_counter()
        moved = original(tensor, *args, **kwargs)
        taken_s = time.perf_counter() - start
        if moved.is_cpu or tensor.layout is not torch.strided:
            return moved
        waits = not (kwargs.get("non_blocking") or any(arg is True for arg in args))
        if not tensor.is_pinned():
            self._kinds["pageable"].add(self._step_count, taken_s, tensor.nbytes)
        elif waits:
            self._kinds["blocking"].add(self._step_count, taken_s, tensor.nbytes)
        return moved

    def _pinned(self, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        pinned = original(tensor, *args, **kwargs)
        taken_s = time.perf_counter() - start
        if pinned is not tensor and self._watch.ledger.current != _DATA:
            self._kinds["pinning"].add(self._step_count, taken_s, tensor.nbytes)
        return pinned

    def ended(self) -> None:
        """Count a step."""
        self._step_count += 1

    def end(self) -> dict[str, Any]:
        """Leave the calls as they were."""
        self._undos.close()
        return {name: kind.read(self._step_count) for name, kind in self._kinds.items()}


EXAMINER = Copies
