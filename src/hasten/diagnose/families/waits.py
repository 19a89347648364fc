"""Waits for an accelerator that nothing needs."""

from __future__ import annotations

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import calls_a_step, exposed_share, places_of
from hasten.diagnose.shares import is_worth_telling
from hasten.records import Finding
from hasten.units import percent

_REMEDIES = {
    "synchronize": "Leave out synchronize(), and time the device with events or over many steps.",
    "empty_cache": "Leave out empty_cache(): torch uses the memory that it keeps again.",
}


def _synchronize_in_loop(case: Case) -> Finding | None:
    """Find synchronize() and empty_cache() in the loop, by the time that the device then idles."""
    told = {name: case.found.get(f"waits.{name}_s", ()) for name in _REMEDIES}
    share = exposed_share(case, told["empty_cache"], told["synchronize"])
    if not is_worth_telling(share):
        return None
    names = sorted((name for name in told if any(told[name])), key=lambda name: -sum(told[name]))
    count = case.found.get("waits.calls_count", 0.0)
    return Finding(
        share=share,
        message=f"The loop calls {' and '.join(names)} ({calls_a_step(count)}), and the "
        "accelerator then has nothing to do until the loop comes to its next work: "
        f"{percent(share.mid_ratio)} of a step.",
        remedy=_REMEDIES[names[0]],
        places=places_of(case.found.get("waits.places", ())),
    )


SYMPTOMS = (Symptom(name="synchronize-in-loop", find=_synchronize_in_loop),)
