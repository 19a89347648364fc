"""The gates: is it still the same training?

A plan that claims the same bits must show them. A plan that only rounds differently must stay
within ten times what one changed bit in the initial weights does to the same script
("perturbation floor", as in TTrace, arXiv 2506.09280): round-off stays below three times that
floor, a wrong learning rate lies thousands of times above it.

Each step is compared from the same weights, tensor by tensor, and the lower quartile over the
steps counts. Rounding is not always small: where an activation lies within a rounding of
zero, ReLU passes it in one run and not in the other, and the gradient of that step differs by a
thousandth. That happens in some steps; a fault is there in all of them. An optimizer remembers
such a gradient, so later movements of the weights may differ as far as the gradients did, but at
least one step must be clean.

In all gates the baseline is the untouched script, the candidate the script under the plan, and the
floors, at least one, are the untouched script with each weight times (1 +- 2^-23), or as said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hasten.records import REPEATABLE, STRUCTURE, Gate, Proof
from hasten.verify.distances import (
    LEAST_DISTANCE,
    average_ratios,
    distance,
    distances,
    gradient_ratios,
    loss_ratio,
    move_ratios,
    own_distances,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.verify.recorded_run import RecordedRun

PASS_RATIO, WARN_RATIO = 10.0, 100.0
TENSOR_FACTOR = 10.0
_GROSS_DISTANCE = 0.2
_SPREAD_FACTOR = 3.0
_LEAST_SPREAD_RATIO, _WIDEST_SPREAD_RATIO = 1e-3, 0.3
_WIDEST_FLOOR_RATIO = 0.01
_COUNTS = frozenset(
    {
        "number of steps",
        "samples per step",
        "number of losses",
        "number of batches",
        "order of calls and settings",
    }
)


def repeatable(first: RecordedRun, second: RecordedRun) -> Gate:
    """G0: the untouched script, launched twice with pinned seeds, gives the same bits."""
    if first.equals(second):
        message = f"two launches of the script are bit-identical over {first.step_count} steps"
        return Gate(name=REPEATABLE, passed=True, message=message)
    spread = loss_distance(first, second)
    message = (
        f"two launches of the script itself differ (losses by up to {spread:.2g} of their "
        "value): differences below that cannot be judged"
    )
    return Gate(name=REPEATABLE, passed=None, message=message, distance_ratio=spread)


def same_structure(
    baseline: RecordedRun,
    candidate: RecordedRun,
    *,
    redraws: bool,
    again: RecordedRun | None = None,
    shaken: Sequence[RecordedRun] = (),
) -> Gate:
    """G1: same batches in the same order, same optimizer settings, same parts in training.

    Where the plan declares that it `redraws` inside the samples, their order is compared directly;
    otherwise their content implies it. What differs in a second launch of the untouched script,
    `again`, is not the plan's doing; nor are counts that differ with one bit changed (`shaken`).
    """
    name = STRUCTURE
    changed = _differing(baseline, candidate, redraws=redraws)
    own = _differing(baseline, again, redraws=redraws) if again is not None else []
    bent = {one for run in shaken for one in _differing(baseline, run, redraws=redraws)} & _COUNTS
    if differing := [one for one in changed if one not in own and one not in bent]:
        message = f"the plan changes the {' and the '.join(differing)}"
        return Gate(name=name, passed=False, message=message)
    if own:
        message = f"two launches of the script itself differ in the {' and the '.join(own)}"
        return Gate(name=name, passed=None, message=message)
    if changed:
        what = " and the ".join(changed)
        message = f"with one bit of its weights changed, the script itself differs in the {what}"
        return Gate(name=name, passed=None, message=message)
    count = min(baseline.step_count, candidate.step_count)
    rest = f"same optimizer settings, same layers in training over {count} steps"
    if redraws and not _orders_seen(baseline, candidate):
        message = f"the order of the samples could not be seen; {rest}"
        return Gate(name=name, passed=None, message=message)
    what = "same order of samples" if redraws else "same batches in the same order"
    return Gate(name=name, passed=True, message=f"{what}, {rest}")


def only_counts_differ(baseline: RecordedRun, candidate: RecordedRun, *, redraws: bool) -> bool:
    """Return whether two runs differ in nothing but counts, which may depend on values."""
    return set(_differing(baseline, candidate, redraws=redraws)) <= _COUNTS


def _differing(baseline: RecordedRun, candidate: RecordedRun, *, redraws: bool) -> list[str]:
    """Return what differs in kind or order between two runs."""
    left, right = baseline, candidate
    fetched_count = min(len(left.batches), len(right.batches))
    same_kinds = _kinds(left) == _kinds(right)
    return [
        name
        for name, same in (
            ("number of steps", left.step_count == right.step_count),
            ("samples per step", left.samples == right.samples),
            ("number of losses", _losses_count(left) == _losses_count(right)),
            ("order of the samples", not redraws or _equal_orders(left, right)),
            ("optimizer settings or training flags", same_kinds),
            ("order of calls and settings", not same_kinds or left.structure == right.structure),
            ("number of batches", redraws or len(left.batches) == len(right.batches)),
            (
                "content of the batches",
                redraws or left.batches[:fetched_count] == right.batches[:fetched_count],
            ),
        )
        if not same
    ]


def _kinds(evidence: RecordedRun) -> list[str]:
    """Return the distinct calls and settings, in the order of their first occurrence."""
    return list(dict.fromkeys(evidence.structure))


def _losses_count(evidence: RecordedRun) -> tuple[int, ...]:
    return (*evidence.losses_at, len(evidence.losses))


def _equal_orders(baseline: RecordedRun, candidate: RecordedRun) -> bool:
    left, right = _common(baseline.orders, candidate.orders)
    return left == right


def _orders_seen(baseline: RecordedRun, candidate: RecordedRun) -> bool:
    """Return whether none of the compared orders of samples is empty."""
    left, _ = _common(baseline.orders, candidate.orders)
    return bool(left) and all(left)


def _common(
    left: Sequence[tuple[str, ...]], right: Sequence[tuple[str, ...]]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Cut two sets of index streams to the part that both have asked for so far.

    Workers fetch ahead, so one stream is longer; by how much depends on speed. A candidate that
    lacks a whole stream has shown nothing, so the two sets stay different.
    """
    if len(right) < len(left):
        return list(left), list(right)
    pairs = [(a[: len(b)], b[: len(a)]) for a, b in zip(left, right, strict=False)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def same_bits(baseline: RecordedRun, candidate: RecordedRun, *, drawn_alike: bool) -> Gate:
    """Equal batches, losses and weights, to the last bit: the plan changed nothing at all.

    It was `drawn_alike` if random generators were where the script has them, as far as it repeats
    that.
    """
    if not drawn_alike:
        message = "random generators are not where the script has them: later draws would differ"
        return Gate(name="equal bits", passed=False, message=message)
    if candidate.equals(baseline):
        message = f"the weights after {baseline.step_count} steps are bit-identical"
        return Gate(name="equal bits", passed=True, message=message)
    message = f"the weights after {baseline.step_count} steps are not bit-identical"
    return Gate(name="equal bits", passed=False, message=message)


def incomparable(name: str, baseline: RecordedRun, candidate: RecordedRun) -> Gate | None:
    """Return a failed gate where two runs have no losses and gradients to compare one by one."""
    if candidate.sizes == baseline.sizes and len(candidate.losses) == len(baseline.losses):
        return None
    message = "the plan changes the parameters or the number of losses"
    return Gate(name=name, passed=False, message=message)


def within_floor(
    baseline: RecordedRun, candidate: RecordedRun, floors: Sequence[RecordedRun]
) -> Gate:
    """G3: gradients, losses, weights and averages differ no more than by rounding.

    The distance of each tensor to the baseline's, relative to its size, is divided by the distance
    that one changed bit per weight causes. The typical tensor may reach 10, the worst 100.
    """
    name = "G3 rounding"
    if unlike := incomparable(name, baseline, candidate):
        return unlike
    gross = gross_step(baseline, candidate, floors) or _gross_tail(baseline, candidate, floors)
    if gross:
        return Gate(name=name, passed=False, message=gross, distance_ratio=float("inf"))
    ratios = part_ratios(baseline, candidate, floors)
    worst = max(ratios, key=lambda part: ratios[part])
    ratio = ratios[worst]
    figures = ", ".join(f"{part} {r:.2g}" for part, r in ratios.items() if "worst" not in part)
    if ratio <= PASS_RATIO:
        message = f"consistent with rounding: {figures} times a one-bit perturbation"
        return Gate(name=name, passed=True, message=message, distance_ratio=ratio)
    if ratio <= WARN_RATIO:
        message = (
            f"somewhat more than rounding: {figures} times a one-bit perturbation, {worst} "
            f"{ratio:.2g} times"
        )
        return Gate(name=name, passed=None, message=message, distance_ratio=ratio)
    message = f"the {worst} differ by {ratio:.3g} times a one-bit perturbation: not rounding"
    return Gate(name=name, passed=False, message=message, distance_ratio=ratio)


def part_ratios(
    baseline: RecordedRun,
    candidate: RecordedRun,
    floors: Sequence[RecordedRun],
    *,
    least: float = LEAST_DISTANCE,
    lost_distance: float = np.inf,
    varies: bool = False,
) -> dict[str, float]:
    """Return how many times further than the floor each part lies: typical tensors and worst.

    A relative distance of `least` is rounding whatever the floor says. A gradient that the floor
    takes further than `lost_distance` is nothing but rounding and only has to stay small. A script
    that `varies` does not repeat itself, which takes gradients far, too.
    """
    parts = {
        "gradients": gradient_ratios(
            baseline, candidate, floors, least, lost_distance=lost_distance, varies=varies
        ),
        "weights": move_ratios(baseline, candidate, floors, least),
        "averages": average_ratios(baseline, candidate, floors, least),
    }
    known = {part: values for part, values in parts.items() if values.size}
    ratios = {part: float(np.median(values)) for part, values in known.items()}
    ratios["losses"] = loss_ratio(baseline, candidate, floors, least)
    for part, values in known.items():
        ratios[f"worst {part}"] = float(np.max(values)) / TENSOR_FACTOR
    return ratios


def resolved(gate: Gate, baseline: RecordedRun, floors: Sequence[RecordedRun]) -> Gate:
    """Say how finely a script that varies can be judged; what cannot be is left undecided.

    Its runs with one bit changed also differ by whatever any two of its launches differ by, so
    their distance is the floor for both. Where the floor is wide, lying within it shows nothing.
    """
    gradients, weights = own_distances(baseline, floors)
    own = (
        f"two launches of the script itself differ by {gradients:.2g} of the gradients and by "
        f"{weights:.2g} of a movement of the weights"
    )
    if gate.passed is not True or max(gradients, weights) <= _WIDEST_FLOOR_RATIO:
        return replace(gate, message=f"{gate.message} ({own})")
    message = f"{own}: what the plan does to them cannot be judged"
    return replace(gate, passed=None, message=message)


def by_spread(baseline: RecordedRun, candidate: RecordedRun, floors: Sequence[RecordedRun]) -> Gate:
    """Judge by the losses alone where runs diverge from their first step on."""
    own = [repeatable(baseline, floor) for floor in floors]
    widest = max(own, key=lambda gate: gate.distance_ratio or 0.0)
    return within_spread(baseline, candidate, widest)


def within_spread(baseline: RecordedRun, candidate: RecordedRun, gate: Gate) -> Gate:
    """Judge a script by the spread of its losses: three times that, at least 0.1%.

    The rule of Megatron-LM's golden values (functional_tests, compute_golden_statistics.py). Two
    losses of one sign differ by all of their value at most, so that a wide spread allows anything.
    """
    name, own = "G3 spread", gate.distance_ratio or 0.0
    if len(baseline.losses) and not len(candidate.losses):
        return Gate(name=name, passed=False, message="under the plan no loss is computed")
    allowed = max(_SPREAD_FACTOR * own, _LEAST_SPREAD_RATIO)
    distance = loss_distance(baseline, candidate)
    if allowed > _WIDEST_SPREAD_RATIO and np.isfinite(distance):
        message = (
            f"losses differ by up to {distance:.2g} of their value, those of the script itself by "
            f"{own:.2g}: what the plan does to them cannot be judged"
        )
        return Gate(name=name, passed=None, message=message)
    passed = distance <= min(allowed, _WIDEST_SPREAD_RATIO)
    message = f"losses differ by up to {distance:.2g} of their value, {allowed:.2g} is allowed"
    return Gate(name=name, passed=passed, message=message, distance_ratio=distance / allowed)


def loss_distance(first: RecordedRun, second: RecordedRun) -> float:
    """Return the largest relative difference of two loss curves; infinite where one is NaN."""
    worst = 0.0
    for left, right in zip(first.losses, second.losses, strict=False):
        if np.array_equal(left, right, equal_nan=True):
            continue
        distance = abs(left - right) / max(abs(left), abs(right), 1e-12)
        worst = max(worst, distance if np.isfinite(distance) else np.inf)
    return worst


def show_losses(proof: Proof, baseline: RecordedRun, candidate: RecordedRun) -> Proof:
    """Return the proof with the losses that both runs had, as far as both went."""
    pairs = list(zip(baseline.step_losses, candidate.step_losses, strict=False))
    return replace(
        proof,
        baseline_losses=tuple(own for own, _ in pairs),
        candidate_losses=tuple(other for _, other in pairs),
        taught_count=min(len(candidate.gradients), len(pairs)),
    )


def gross_step(
    baseline: RecordedRun,
    candidate: RecordedRun,
    floors: Sequence[RecordedRun],
    parts: Sequence[str] = ("gradients", "moves"),
) -> str:
    """Return what is wrong with a single step that is far off, such as a skipped one."""
    whole, words = (sum(baseline.sizes),), {"gradients": "gradients", "moves": "weights"}
    for part in parts:
        own = getattr(baseline, part)
        apart = distances(getattr(candidate, part), own, whole)[:, 0]
        shaken = [distances(getattr(floor, part), own, whole) for floor in floors]
        finite = [table[np.isfinite(table)] for table in shaken]
        largest = max([float(np.max(values)) for values in finite if values.size], default=0.0)
        worst = int(np.argmax(apart))
        if apart[worst] > max(_GROSS_DISTANCE, PASS_RATIO * largest):
            far = f"{apart[worst]:.2g}"
            return f"the {words[part]} of step {worst + 1} differ by {far} of their size"
    if not np.isfinite(candidate.losses).all() and np.isfinite(baseline.losses).all():
        return "a loss is not a number"
    return ""


def _gross_tail(
    baseline: RecordedRun, candidate: RecordedRun, floors: Sequence[RecordedRun]
) -> str:
    """Return what is wrong with the steps after the taught ones, such as skipped ones."""
    if not baseline.tail.size or not candidate.tail.size:
        return ""
    apart = distance(candidate.tail, baseline.tail)
    shaken = [distance(floor.tail, baseline.tail) for floor in floors if floor.tail.size]
    largest = max([far for far in shaken if np.isfinite(far)], default=0.0)
    if apart <= max(_GROSS_DISTANCE, PASS_RATIO * largest):
        return ""
    return f"the weights of the last steps differ by {apart:.2g} of what they moved"
