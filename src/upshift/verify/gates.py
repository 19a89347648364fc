"""The gates: is it still the same training?

A plan that claims the same bits must show them. A plan that only rounds otherwise must stay
within ten times what one changed bit in the initial weights does to the same script
("perturbation floor", as in TTrace, arXiv 2506.09280): round-off stays below three times that
floor, a wrong learning rate lies thousands of times above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from upshift.records import Effect, Gate, Proof

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from upshift.verify.evidence import Evidence

PASS_RATIO, WARN_RATIO = 10.0, 100.0
_LOSS_ULPS = 4 * 2.0**-23
_SPREAD_FACTOR = 3.0
_LEAST_SPREAD_RATIO = 1e-3


def repeatable(first: Evidence, second: Evidence) -> Gate:
    """G0: the untouched script, launched twice with pinned seeds, gives the same bits."""
    if first.equals(second):
        says = f"two launches of the script agree to the bit over {first.step_count} steps"
        return Gate(name="G0 repeatable", passed=True, says=says)
    spread = loss_distance(first, second)
    says = (
        f"two launches of the script itself differ (losses by up to {spread:.2g} of their "
        "value): differences below that cannot be judged"
    )
    return Gate(name="G0 repeatable", passed=None, says=says, distance_ratio=spread)


def same_structure(baseline: Evidence, candidate: Evidence, *, redraws: bool) -> Gate:
    """G1: same batches in the same order, same optimizer settings, same parts in training.

    Args:
        baseline: the untouched script.
        candidate: the script under the plan.
        redraws: the plan says that random draws inside the samples change; then the order of
            the samples is compared in place of their content.
    """
    count = min(baseline.step_count, candidate.step_count)
    differing = [
        name
        for name, left, right in (
            ("number of steps", baseline.step_count, candidate.step_count),
            ("samples per step", baseline.samples, candidate.samples),
            ("number of losses", len(baseline.losses), len(candidate.losses)),
            ("order of the samples", *_common(baseline.orders, candidate.orders)),
            ("optimizer settings or training flags", baseline.structure, candidate.structure),
            (
                "content of the batches",
                None if redraws else baseline.batches,
                None if redraws else candidate.batches,
            ),
        )
        if left != right
    ]
    if differing:
        says = f"the plan changes the {' and the '.join(differing)}"
        return Gate(name="G1 structure", passed=False, says=says)
    what = "same order of samples" if redraws else "same batches in the same order"
    says = f"{what}, same optimizer settings, same layers in training over {count} steps"
    return Gate(name="G1 structure", passed=True, says=says)


def _common(
    left: Sequence[tuple[str, ...]], right: Sequence[tuple[str, ...]]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Cut two sets of index streams to the part that both have asked for so far.

    Workers ask ahead, so one stream is longer; how far is a matter of speed. A candidate that
    lacks a whole stream has shown nothing, so that the two sets stay different.
    """
    if len(right) < len(left):
        return list(left), list(right)
    pairs = [(a[: len(b)], b[: len(a)]) for a, b in zip(left, right, strict=False)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def same_bits(baseline: Evidence, candidate: Evidence) -> Gate:
    """Equal hashes of all weights after the last step: the plan changed nothing at all."""
    if baseline.equals(candidate):
        says = f"the weights after {baseline.step_count} steps are equal to the bit"
        return Gate(name="equal bits", passed=True, says=says)
    says = f"the weights after {baseline.step_count} steps are not equal to the bit"
    return Gate(name="equal bits", passed=False, says=says)


def within_floor(baseline: Evidence, candidate: Evidence, floors: Sequence[Evidence]) -> Gate:
    """G3: gradients, losses and weights differ no more than by rounding.

    Each distance to the baseline is divided by the largest distance that one changed bit per
    initial weight causes: gradients of step 1, losses of every step, movement of the weights
    after the first and after the last step.

    Args:
        baseline: the untouched script.
        candidate: the script under the plan.
        floors: the untouched script with weights times (1 +- 2^-23), at least one.
    """
    ratios = {
        "gradients": _over_floor(
            _distance(candidate.gradients, baseline.gradients),
            [_distance(floor.gradients, baseline.gradients) for floor in floors],
        ),
        "losses": _losses_over_floor(baseline, candidate, floors),
        "first step": _over_floor(
            _distance(candidate.moved_once, baseline.moved_once),
            [_distance(floor.moved_once, baseline.moved_once) for floor in floors],
        ),
        "all steps": _over_floor(
            _distance(candidate.moved, baseline.moved),
            [_distance(floor.moved, baseline.moved) for floor in floors],
        ),
    }
    worst = max(ratios, key=lambda name: ratios[name])
    ratio = ratios[worst]
    figures = ", ".join(f"{name} {value:.2g}" for name, value in ratios.items())
    if ratio <= PASS_RATIO:
        says = f"differs like rounding: {figures} times what one changed bit does"
        return Gate(name="G3 rounding", passed=True, says=says, distance_ratio=ratio)
    if ratio <= WARN_RATIO:
        says = f"differs somewhat more than rounding should: {figures} times one changed bit"
        return Gate(name="G3 rounding", passed=None, says=says, distance_ratio=ratio)
    says = f"the {worst} differ by {ratio:.3g} times what one changed bit does: not rounding"
    return Gate(name="G3 rounding", passed=False, says=says, distance_ratio=ratio)


def within_spread(baseline: Evidence, candidate: Evidence, gate: Gate) -> Gate:
    """Judge a script that does not repeat itself: three times its own spread, at least 0.1 %.

    The rule of Megatron-LM's golden values (functional_tests, compute_golden_statistics.py).
    """
    allowed = max(_SPREAD_FACTOR * (gate.distance_ratio or 0.0), _LEAST_SPREAD_RATIO)
    distance = loss_distance(baseline, candidate)
    passed = distance <= allowed
    says = f"losses differ by up to {distance:.2g} of their value, {allowed:.2g} is allowed"
    return Gate(name="G3 spread", passed=passed, says=says, distance_ratio=distance / allowed)


def loss_distance(first: Evidence, second: Evidence) -> float:
    """Return the largest relative difference of two loss curves; infinite where one is NaN."""
    worst = 0.0
    for left, right in zip(first.losses, second.losses, strict=False):
        distance = abs(left - right) / max(abs(left), abs(right), 1e-12)
        worst = max(worst, distance if np.isfinite(distance) else np.inf)
    return worst


def measured_effect(declared: Effect, *, equal: bool) -> Effect:
    """Return what the plan does here: nothing at all where the bits were shown to be equal."""
    return Effect.EXACT if equal else declared


def prove(effect: Effect, gates: Sequence[Gate]) -> Proof:
    """Return the gates as one proof."""
    return Proof(effect=effect, gates=tuple(gates))


def _distance(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    if left.size != right.size:
        return float("inf")
    reference = float(np.linalg.norm(right.astype(np.float64)))
    if reference == 0.0:
        return 0.0 if not np.any(left) else float("inf")
    distance = float(np.linalg.norm((left - right).astype(np.float64))) / reference
    return distance if np.isfinite(distance) else float("inf")


def _over_floor(distance: float, floors: Sequence[float]) -> float:
    # A floor run that ran away to infinity would permit everything.
    return distance / max([*filter(np.isfinite, floors), 2.0**-23])


def _losses_over_floor(
    baseline: Evidence, candidate: Evidence, floors: Sequence[Evidence]
) -> float:
    worst = 0.0 if len(baseline.losses) == len(candidate.losses) else float("inf")
    for index, (own, other) in enumerate(zip(baseline.losses, candidate.losses, strict=False)):
        spread = [abs(floor.losses[index] - own) for floor in floors if index < len(floor.losses)]
        allowed = max([*filter(np.isfinite, spread), _LOSS_ULPS * abs(own), 1e-12])
        distance = abs(own - other) / allowed
        worst = max(worst, distance if np.isfinite(distance) else float("inf"))
    return worst
