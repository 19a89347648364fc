"""The gates: is it still the same training?

A plan that claims the same bits must show them. A plan that only rounds otherwise must stay
within ten times what one changed bit in the initial weights does to the same script
("perturbation floor", as in TTrace, arXiv 2506.09280): round-off stays below three times that
floor, a wrong learning rate lies thousands of times above it.

Each step is compared from the same weights, tensor by tensor, and the lower quartile over the
steps counts. For rounding is not always small: where an activation lies within a rounding of
zero, ReLU passes it in one run and not in the other, and the gradient of that step differs by a
thousandth. That happens in some steps; a fault is there in all of them. An optimizer remembers
such a gradient, so later movements of the weights may differ as far as the gradients did, but at
least one step must be clean.
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
TENSOR_FACTOR = 10.0
_LEAST_DISTANCE = 4 * 2.0**-23
_GROSS_DISTANCE = 0.2
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

    The distance of each tensor to the baseline's, relative to its size, is divided by the distance
    that one changed bit per weight causes. The typical tensor may reach 10, the worst 100.

    Args:
        baseline: the untouched script.
        candidate: the script under the plan.
        floors: the untouched script with weights times (1 +- 2^-23), at least one.
    """
    name = "G3 rounding"
    if candidate.sizes != baseline.sizes or len(candidate.losses) != len(baseline.losses):
        says = "the plan changes the parameters or the number of losses"
        return Gate(name=name, passed=False, says=says)
    if gross := _gross_step(baseline, candidate, floors):
        return Gate(name=name, passed=False, says=gross, distance_ratio=float("inf"))
    parts = {
        "gradients": _gradient_ratios(baseline, candidate, floors),
        "weights": _move_ratios(baseline, candidate, floors),
    }
    ratios = {part: float(np.median(values)) for part, values in parts.items()}
    ratios["losses"] = _loss_ratio(baseline, candidate, floors)
    for part, values in parts.items():
        ratios[f"worst {part}"] = float(np.max(values)) / TENSOR_FACTOR
    worst = max(ratios, key=lambda part: ratios[part])
    ratio = ratios[worst]
    figures = ", ".join(f"{part} {ratios[part]:.2g}" for part in ("gradients", "weights", "losses"))
    if ratio <= PASS_RATIO:
        says = f"differs like rounding: {figures} times what one changed bit does"
        return Gate(name=name, passed=True, says=says, distance_ratio=ratio)
    if ratio <= WARN_RATIO:
        says = (
            f"differs somewhat more than rounding should: {figures} times what one changed bit "
            f"does, {worst} {ratio:.2g} times"
        )
        return Gate(name=name, passed=None, says=says, distance_ratio=ratio)
    says = f"the {worst} differ by {ratio:.3g} times what one changed bit does: not rounding"
    return Gate(name=name, passed=False, says=says, distance_ratio=ratio)


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


def prove(effect: Effect, gates: Sequence[Gate]) -> Proof:
    """Return the gates as one proof."""
    return Proof(effect=effect, gates=tuple(gates))


def _distances(
    left: Sequence[NDArray[np.float32]], right: Sequence[NDArray[np.float32]], sizes: Sequence[int]
) -> NDArray[np.float64]:
    """Return relative distances, shape (steps, tensors); infinite where a value is no number."""
    borders = np.cumsum(sizes)[:-1]
    table = [
        [_distance(a, b) for a, b in zip(np.split(x, borders), np.split(y, borders), strict=True)]
        for x, y in zip(left, right, strict=False)
    ]
    return np.asarray(table, dtype=np.float64)


def _distance(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    reference = float(np.linalg.norm(right.astype(np.float64)))
    if reference == 0.0:
        return 0.0 if not np.any(left) else float("inf")
    distance = float(np.linalg.norm(left.astype(np.float64) - right)) / reference
    return distance if np.isfinite(distance) else float("inf")


def _floor(table: NDArray[np.float64]) -> NDArray[np.float64]:
    # A floor run that ran away to infinity would permit everything.
    finite = np.where(np.isfinite(table), table, 0.0)
    return np.asarray(np.maximum(np.median(finite, axis=0), _LEAST_DISTANCE), dtype=np.float64)


def _gradient_ratios(
    baseline: Evidence, candidate: Evidence, floors: Sequence[Evidence]
) -> NDArray[np.float64]:
    """Return for each tensor how many times further it is than one changed bit takes it."""
    own, sizes = baseline.gradients, baseline.sizes
    table = _distances(candidate.gradients, own, sizes)
    shaken = np.concatenate([_distances(floor.gradients, own, sizes) for floor in floors])
    return np.asarray(_quartile(table) / _floor(shaken), dtype=np.float64)


def _move_ratios(
    baseline: Evidence, candidate: Evidence, floors: Sequence[Evidence]
) -> NDArray[np.float64]:
    """Return the same for movements: the cleanest step, and the quartile beyond the gradients."""
    own, sizes = baseline.moves, baseline.sizes
    table = _distances(candidate.moves, own, sizes)
    floor = _floor(np.concatenate([_distances(other.moves, own, sizes) for other in floors]))
    gradients = _distances(candidate.gradients, baseline.gradients, sizes)
    explained = np.max(np.where(np.isfinite(gradients), gradients, 0.0), axis=0)
    cleanest = np.min(table, axis=0) / floor
    beyond = _quartile(table) / np.maximum(floor, explained)
    return np.asarray(np.maximum(cleanest, beyond), dtype=np.float64)


def _quartile(table: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.quantile(table, 0.25, axis=0, method="lower"), dtype=np.float64)


def _loss_ratio(baseline: Evidence, candidate: Evidence, floors: Sequence[Evidence]) -> float:
    count = baseline.forced_losses_count
    own = np.asarray(baseline.losses[:count], dtype=np.float64)
    if not count:
        return 0.0
    if not np.isfinite(own).all():
        return float("inf")
    scale = np.maximum(np.abs(own), 1e-12)
    distances = np.abs(np.asarray(candidate.losses[:count]) - own) / scale
    shaken = [
        np.abs(np.asarray(floor.losses[:count]) - own) / scale
        for floor in floors
        if len(floor.losses) >= count
    ]
    floor = _floor(np.concatenate(shaken)[:, None]) if shaken else np.asarray([_LEAST_DISTANCE])
    distances = np.where(np.isfinite(distances), distances, np.inf)
    return float(np.quantile(distances, 0.25, method="lower") / floor[0])


def _gross_step(baseline: Evidence, candidate: Evidence, floors: Sequence[Evidence]) -> str:
    """Return what is wrong with a single step that differs by far: one that was skipped, say."""
    whole = (sum(baseline.sizes),)
    for part, word in (("gradients", "gradients"), ("moves", "weights")):
        own = getattr(baseline, part)
        distances = _distances(getattr(candidate, part), own, whole)[:, 0]
        shaken = [_distances(getattr(floor, part), own, whole) for floor in floors]
        finite = [table[np.isfinite(table)] for table in shaken]
        largest = max([float(np.max(values)) for values in finite if values.size], default=0.0)
        worst = int(np.argmax(distances))
        if distances[worst] > max(_GROSS_DISTANCE, PASS_RATIO * largest):
            return f"the {word} of step {worst + 1} differ by {distances[worst]:.2g} of their size"
    if not np.isfinite(candidate.losses).all() and np.isfinite(baseline.losses).all():
        return "a loss is not a number"
    return ""
