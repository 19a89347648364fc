"""malloc_retention: keep freed memory in the process instead of giving it back each step.

Helps: steps that allocate tensors of megabytes: glibc returns them to the kernel at once, and
    the next step faults every page in again. Whether it does so depends on what happens to lie at
    the end of the heap, so it happens in some launches of a script and not in others.
Hurts: memory; the resident set stays at its peak.
Maths: exact. Only where the bytes live changes.
Source: https://man7.org/linux/man-pages/man3/mallopt.3.html
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hasten.lever import COMPUTE_AND_DATA, Lever, unless
from hasten.records import Effect, Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training
    from hasten.records import Traits

_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES, _LEAST_MMAP_BYTES, _TRIM_BYTES = 1 << 30, 32 << 20, (1 << 31) - 1


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    if other := _other_allocator(True, context.traits):
        return other
    if own := _set_by_the_user():
        return f"{own} is set already"
    return context.few_faults()


def _other_allocator(setting: bool, traits: Traits) -> str:
    return "another allocator is loaded" if "malloc" in traits.preloaded else ""


def _set_by_the_user() -> str:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "mmap_threshold" in tunables or "trim_threshold" in tunables:
        return "GLIBC_TUNABLES"
    return next((name for name in _VARIABLES if os.environ.get(name)), "")


def _raise_thresholds(libc: Any) -> None:
    """Raise the mmap threshold as far as this glibc accepts it, then the trim threshold.

    Older ones refuse more than half of the largest heap. Where both sizes are refused, a trim
    threshold alone would do harm: it stops the mmap threshold from growing by itself.
    """
    if any(libc.mallopt(_M_MMAP_THRESHOLD, size) for size in (_MMAP_BYTES, _LEAST_MMAP_BYTES)):
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def apply(training: Training, setting: bool) -> Callable[[], None]:
    """Raise both thresholds of glibc's allocator; memory it has retained stays retained."""
    import ctypes

    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and not _set_by_the_user():
        _raise_thresholds(libc)
    return lambda: None


LEVER = Lever(
    name="malloc_retention",
    phases=COMPUTE_AND_DATA,
    effect=Effect.EXACT,
    scope=Scope.LAUNCH,
    settings=unless(why_not, True),
    gain_ratio=3.0,
    why_not=why_not,
    snippet=lambda _: (
        "MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=2147483647 python ..."
        "  # in the shell; older glibc: 33554432 at most for the first"
    ),
    apply=apply,
    edit="process.malloc_retention",
    redundant_with=_other_allocator,
    cures=frozenset({"page-faults"}),
    steadies=True,
)
