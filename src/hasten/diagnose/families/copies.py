"""Copies to an accelerator that block the loop's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import exposed_share, places_of
from hasten.diagnose.shares import is_worth_telling
from hasten.records import LEAST_RATIO, Finding
from hasten.units import percent, size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hasten.records import Interval


def _seen(case: Case, kind: str) -> tuple[Interval, Mapping[str, Any]] | None:
    """Return the share of one kind of copy and what is known about it, if it costs anything."""
    told = case.found.get(f"copies.{kind}")
    if not told:
        return None
    seconds = told["step_s"]
    on_host = kind == "pinning"
    share = exposed_share(case, seconds, [0.0] * len(seconds)) if on_host else case.share(seconds)
    if not is_worth_telling(share):
        return None
    return share, told


def _pinned_memory_missing(case: Case) -> Finding | None:
    """Find copies from pageable memory."""
    seen = _seen(case, "pageable")
    if seen is None:
        return None
    share, told = seen
    return Finding(
        share=share,
        message=f"Copies of {size(int(told['step_bytes']))} a step to the accelerator start in "
        f"memory that is not pinned: the copies alone take {percent(share.mid_ratio)} of a step.",
        remedy="Give the DataLoader pin_memory=True and copy with non_blocking=True.",
        places=places_of(told["lines"]),
    )


def _blocking_copies(case: Case) -> Finding | None:
    """Find copies from pinned memory that the loop waits for."""
    seen = _seen(case, "blocking")
    if seen is None:
        return None
    share, told = seen
    return Finding(
        share=share,
        message=f"The loop waits for copies of {size(int(told['step_bytes']))} a step to the "
        f"accelerator, although their memory is pinned: {percent(share.mid_ratio)} of a step.",
        remedy="Copy with non_blocking=True.",
        places=places_of(told["lines"]),
    )


def _pinned_memory_useless(case: Case) -> Finding | None:
    """Find memory that is pinned by hand in the loop, or pinned for copies that never happen."""
    if (seen := _seen(case, "pinning")) is not None:
        share, told = seen
        return Finding(
            share=share,
            message=f"The loop pins {size(int(told['step_bytes']))} a step by hand, which takes "
            f"{percent(share.mid_ratio)} of it.",
            remedy="Leave out .pin_memory(), and give the DataLoader pin_memory=True.",
            places=places_of(told["lines"]),
        )
    run_s, wall_s = (case.found.get(f"copies.pinner_{key}") for key in ("run_s", "wall_s"))
    if case.found.get("copies.copy_count") or run_s is None or not wall_s:
        return None
    ratio = min(1.0, run_s / wall_s)
    if ratio < LEAST_RATIO:
        return None
    return Finding(
        message=f"A thread pins every batch and is busy for {percent(ratio)} of the time, but no "
        "batch is copied to an accelerator.",
        remedy="Leave out pin_memory=True.",
    )


SYMPTOMS = (
    Symptom(name="pinned-memory-missing", find=_pinned_memory_missing),
    Symptom(name="blocking-copies", find=_blocking_copies),
    Symptom(name="pinned-memory-useless", find=_pinned_memory_useless),
)
