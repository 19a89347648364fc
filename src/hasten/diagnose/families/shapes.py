"""Batches of the wrong size: too small to be worth a step, or full of padding."""

from __future__ import annotations

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import operation_s, places_of, quiet_s, quiet_step_s, share_of
from hasten.diagnose.shares import is_worth_telling
from hasten.records import Finding, Phase
from hasten.units import percent

_MODEL = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)
_LEAST_FIXED_RATIO, _LEAST_SURE_RATIO = 0.5, 0.3
_LEAST_COUNT, _MOST_REPEATS_COUNT = 10, 100
# Overhead of Python, modules and autograd per operation, in units of a one-number operation.
_MOST_PRICES = 25
_LEAST_PADDING_RATIO = 0.1


def _tiny_batch(case: Case) -> Finding | None:
    """Find steps whose operations take about as long as they would on a single number."""
    counts = case.found.get("operations.count", ())
    repeats_count = case.found.get("operations.repeats_count", 0)
    if not counts or min(counts) < _LEAST_COUNT or repeats_count >= _MOST_REPEATS_COUNT:
        return None  # a loop over samples or time steps grows with the batch
    most_s = _MOST_PRICES * case.found["operations.price_s"]
    model_s, work_s = quiet_s(case, *_MODEL), operation_s(case, "model_work")
    fixed_s = [
        min(count * most_s, max(0.0, model_s - one_s))
        for count, one_s in zip(counts, work_s, strict=True)
    ]
    share = share_of(case, fixed_s)
    if share is None or share.mid_ratio < _LEAST_FIXED_RATIO or share.low_ratio < _LEAST_SURE_RATIO:
        return None
    longer = 2 - share.mid_ratio
    unit = "tokens" if case.profile.sample_unit == "tokens" else "samples"
    return Finding(
        share=share,
        message=(
            f"{percent(share.mid_ratio)} of a step is the fixed cost of {max(counts)} operations, "
            f"whatever the batch: with twice the {unit} it would take at most "
            f"about {longer:.2g} times as long ({quiet_step_s(case) * 1e3:.3g} ms now)."
        ),
        remedy="Try a larger batch with a learning rate to match, or torch.compile.",
    )


def _padding_waste(case: Case) -> Finding | None:
    """Find padding tokens, by their share of the forward and backward passes."""
    counts = () if case.found.get("shapes.packed") else case.found.get("shapes.padding", ())
    whole = sum(total for total, _, _ in counts)
    if not whole:
        return None
    padding_ratio = sum(padded for _, padded, _ in counts) / whole
    columns_ratio = sum(columns for _, _, columns in counts) / whole
    seconds = [
        (padded / total if total else 0.0) * sum(step.phase_ns.get(p, 0) for p in _MODEL) * 1e-9
        for (total, padded, _), step in zip(counts, case.steps, strict=False)
    ]
    share = case.share(seconds)
    if not is_worth_telling(share) or padding_ratio < _LEAST_PADDING_RATIO:
        return None
    trims = columns_ratio >= padding_ratio / 2
    place = case.found.get("shapes.place")
    return Finding(
        share=share,
        message=(
            f"{percent(padding_ratio)} of the tokens are padding ({percent(columns_ratio)} in "
            "columns of nothing else); if the model computes them like other tokens, they take "
            f"{percent(share.mid_ratio)} of a step."
        ),
        remedy=(
            "Pad each batch to its own longest row, not to a fixed length."
            if trims
            else "Put rows of like length into a batch: sort by length within some batches."
        ),
        places=places_of([place] if place else ()),
    )


SYMPTOMS = (
    Symptom(name="tiny-batch", find=_tiny_batch, on_host=True),
    Symptom(name="padding-waste", find=_padding_waste),
)
