"""Steps that wait for something that is not training."""

from __future__ import annotations

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.shares import is_worth_telling
from hasten.records import Finding
from hasten.units import percent


def _gc_pauses(case: Case) -> Finding | None:
    """Find Python's garbage collections, by the time they took."""
    share = case.share_of_all(case.found.get("pauses.collections_s", ()))
    if not is_worth_telling(share):
        return None
    return Finding(
        share=share,
        is_of_all=True,
        message=f"Python's garbage collector takes {percent(share.mid_ratio)} of the time.",
        remedy="Call gc.freeze() after the set-up, and raise gc.set_threshold.",
    )


SYMPTOMS = (Symptom(name="gc-pauses", find=_gc_pauses, on_host=True),)
