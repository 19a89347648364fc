"""What the process uses, and what the machine can do."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from hasten.instrument import accelerators

if TYPE_CHECKING:
    from collections.abc import Callable

_MATRIX_SIDE = 1024
_PROBE_S = 0.25


def usage() -> dict[str, float]:
    """Return peak bytes, minor page faults and CPU seconds, loader workers included.

    CPU seconds are those of this process, of its live children (from /proc), and of those that
    ended (getrusage(2)).
    """
    import multiprocessing
    import resource

    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    alive_s = 0.0
    for child in multiprocessing.active_children():
        try:
            with open(f"/proc/{child.pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            alive_s += (int(fields[11]) + int(fields[12])) * tick_s
        except OSError:
            continue
    return {
        **accelerators.usage(),
        "peak_rss_bytes": own.ru_maxrss * 1024,
        "faults_count": own.ru_minflt,
        "cpu_s": own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + alive_s,
    }


def _best_rate(work: Callable[[], object], amount: float) -> float:
    work()
    best_s, until = float("inf"), time.perf_counter() + _PROBE_S
    while time.perf_counter() < until:
        start = time.perf_counter()
        work()
        best_s = min(best_s, time.perf_counter() - start)
    return amount / best_s


def peaks(device: str) -> dict[str, float | None]:
    """Measure the best rate of float32 matrix products here, in FLOP/s.

    The best within about a quarter of a second, with the threads that the process has now. No
    random numbers are drawn: the script's generators stay where they are.

    Args:
        device: the kind that the models are on; only the CPU is measured: other kinds
            also compute in formats other than float32, at several times the rate.
    """
    import torch

    if device != "cpu":
        return {"peak_flops": None}
    with torch.no_grad():
        left = torch.ones(_MATRIX_SIDE, _MATRIX_SIDE, dtype=torch.float32, device="cpu")
        out = torch.empty_like(left)
        rate = _best_rate(lambda: torch.mm(left, left, out=out), 2 * _MATRIX_SIDE**3)
        return {"peak_flops": rate}


class FlopProbe:
    """Count the floating point operations of the next whole step with torch's own counter."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import FlopCounterMode

        self._mode: Any = FlopCounterMode(display=False)
        self._scope = ExitStack()
        self._scope.enter_context(self._mode)

    def close(self) -> float:
        """Stop counting and return the operations since the probe was made."""
        self._scope.close()
        return float(self._mode.get_total_flops())
