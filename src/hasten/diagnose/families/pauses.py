"""Times in which the loop stands still or does not train: collections, evaluations, checkpoints."""

from __future__ import annotations

from statistics import fmean

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import places_of, quiet_share
from hasten.diagnose.shares import is_worth_telling, ratio_of
from hasten.records import LEAST_RATIO, Finding, Phase
from hasten.units import duration, percent


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


def _eval_with_grad(case: Case) -> Finding | None:
    """Find evaluation that records a graph, by the time of its forward passes."""
    share = quiet_share(case, case.found.get("evaluation.unused_s", ()), of_all=True)
    if not is_worth_telling(share):
        return None
    count = case.found.get("evaluation.unused_count", 0)
    return Finding(
        share=share,
        is_of_all=True,
        message=(
            f"{count} forward passes in eval mode recorded a graph through which no gradient "
            f"came; they take {percent(share.mid_ratio)} of the time."
        ),
        remedy="Evaluate under torch.inference_mode() or torch.no_grad().",
        places=places_of(case.found.get("evaluation.places", ())),
    )


def _checkpoint_stall(case: Case) -> Finding | None:
    """Find checkpoints that the loop waits for, by their duration and period."""
    seen = case.traits.checkpoints
    if seen is None or len(seen.each_s) < 2 or not seen.period_s:
        return None
    share = ratio_of(seen.each_s, [seen.period_s] * len(seen.each_s))
    if share.mid_ratio < LEAST_RATIO:
        return None
    steps_count = seen.period_step_count
    often = "every step" if steps_count < 1.5 else f"every {steps_count:.0f} steps"
    return Finding(
        share=share,
        is_of_all=True,
        message=(
            f"The loop stands still for {duration(fmean(seen.each_s))} {often} while a checkpoint "
            f"is written: {percent(share.mid_ratio)} of the wall clock."
        ),
        remedy=(
            "Save more rarely, or copy the weights and write the copy in a thread beside the loop."
        ),
        places=tuple(hot.place for hot in case.hot_lines if hot.phase == Phase.CHECKPOINT),
    )


SYMPTOMS = (
    Symptom(name="gc-pauses", find=_gc_pauses, on_host=True),
    Symptom(name="eval-with-grad", find=_eval_with_grad),
    Symptom(name="checkpoint-stall", find=_checkpoint_stall),
)
