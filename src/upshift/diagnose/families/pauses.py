"""Steps that wait for something that is not training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from upshift.diagnose.symptom import Symptom
from upshift.records import Finding, Interval
from upshift.units import percent

if TYPE_CHECKING:
    from upshift.diagnose.case import Case

_LEAST_RATIO = 0.02


def _gc_pauses(case: Case) -> Finding | None:
    """Find Python's garbage collections, by the time that they took."""
    step_s = case.traits.get("gc.step_s")
    if step_s is None:
        return None
    share_ratio = min(1.0, step_s / case.step_s)
    if share_ratio < _LEAST_RATIO:
        return None
    seen = case.share(case.found.get("pauses.collections_s", ()))
    share = seen or Interval(low_ratio=share_ratio, mid_ratio=share_ratio, high_ratio=share_ratio)
    return Finding(
        name="gc-pauses",
        share=share,
        says=f"Python's garbage collector takes {percent(share.mid_ratio)} of a step.",
        remedy="Call gc.freeze() after the set-up, and raise gc.set_threshold.",
        lever="garbage_collector",
    )


SYMPTOMS = (
    Symptom(name="gc-pauses", title="Steps stall now and then for no reason", find=_gc_pauses),
)
