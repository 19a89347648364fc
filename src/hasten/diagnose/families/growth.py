"""What gets slower, or larger, from step to step."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import sqrt
from statistics import fmean, median
from typing import TYPE_CHECKING

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import places_of
from hasten.diagnose.shares import NORMAL_95
from hasten.records import LEAST_RATIO, Finding, Interval, Phase
from hasten.units import duration, percent, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Step

_LEAST_STEPS_COUNT = 24
_LEAST_GROWTH_RATIO = 0.05
_SURE_Z = 3.3  # p < 0.001
_BLOCKS_COUNT = 8
_RISING_RATIO = 26 / 28  # of the pairs of eight values: Kendall's test, p < 0.001
_LIKELY_RATIO = 0.75


def _graph_kept_alive(case: Case) -> Finding | None:
    """Find autograd graphs of past steps that something still references."""
    per_step = _kept_count(case.found.get("growth.node_counts", ()))
    if per_step is None or _is_fed_more(case, range(len(case.steps))):
        return None
    resident = case.found.get("growth.resident_bytes") or [0]
    grown_bytes = max(0.0, (resident[-1] - resident[0]) / max(1, len(resident) - 1))
    holder = case.found.get("growth.holder")
    return Finding(
        message=(
            f"Each step leaves {per_step:.3g} nodes of autograd's graph alive"
            + (f", and {size(grown_bytes)} of memory" if grown_bytes else "")
            + (f"; the variable {holder} holds them." if holder else ".")
        ),
        remedy="Keep numbers, not graphs: loss.item() or loss.detach() in sums and lists.",
        places=places_of(case.found.get("growth.places", ())),
    )


def _kept_count(counts: Sequence[tuple[int, int]]) -> float | None:
    """Return how many graph nodes each step leaves alive; None unless the count rises steadily.

    At each count the script still holds the graph of its last step. With layers dropped at random
    or sentences of varying length, both the first and the last third hold small and large graphs.
    Each count is a step and the nodes alive after it.
    """
    if len(counts) < _BLOCKS_COUNT:
        return None
    nodes, third = [count for _, count in counts], len(counts) // 3
    grown_count = min(nodes[-third:]) - max(nodes[:third])
    steps_count = counts[-third][0] - counts[third - 1][0]
    if _rising_ratio(nodes) < _RISING_RATIO or grown_count < steps_count:
        return None
    (first_step, first_count), (last_step, last_count) = counts[0], counts[-1]
    return (last_count - first_count) / (last_step - first_step)


def _is_fed_more(case: Case, at: Sequence[int]) -> bool:
    """Return whether inputs grow, in total or per sample, as when they are sorted by length."""
    counts = case.found.get("growth.element_counts", ())
    if len(counts) < len(case.steps) or len(at) < _BLOCKS_COUNT:
        return False
    whole = [counts[i] for i in at]
    each = [counts[i] / case.steps[i].sample_count for i in at]
    return any(_rising_ratio(_block_medians(one)) >= _LIKELY_RATIO for one in (whole, each))


def _growing_steps(case: Case) -> Finding | None:
    """Find steps that take longer and longer for the same work, by Sen's slope.

    Machine load drifts, too, so the time the loop's thread waited for a CPU is left out, and
    its CPU time must grow as well.
    """
    quiet, cpu_s = case.quiet, case.found.get("growth.cpu_s", ())
    if len(quiet) < _LEAST_STEPS_COUNT or len(cpu_s) < len(case.steps):
        return None
    steps = [case.steps[i] for i in quiet]
    waits_s = dict(enumerate(case.found.get("processors.waits_s", ())))
    values = [(case.steps[i].wall_s - waits_s.get(i, 0.0)) / case.steps[i].sample_count
              for i in quiet]  # fmt: skip
    on_cpu = [cpu_s[i] / case.steps[i].sample_count for i in quiet]
    slope = sen_slope(values)
    if slope is None or not (_rises(values) and _rises(on_cpu)) or _is_fed_more(case, quiet):
        return None
    blocks = _block_medians(values)
    low, middle, high = (min(1.0, one * (len(values) - 1) / blocks[-1]) for one in slope)
    if low < LEAST_RATIO:
        return None
    growth_s = (blocks[-1] - blocks[0]) * fmean(step.sample_count for step in steps)
    return Finding(
        share=Interval(low_ratio=low, mid_ratio=middle, high_ratio=high),
        message=(
            f"Over {len(values)} steps of the same work a step grew by {duration(growth_s)}, "
            f"{percent(middle)} of what the last of them took, mostly in "
            f"{_grown_phase(steps).lower()}."
        ),
        remedy=(
            "Look for what is kept from step to step: a list that is walked through, hooks or "
            "callbacks added again, a graph that is never detached."
        ),
    )


def _block_medians(values: Sequence[float]) -> list[float]:
    """Return the medians of eight blocks, so that noise lasting several steps counts once."""
    ends = [len(values) * i // _BLOCKS_COUNT for i in range(_BLOCKS_COUNT + 1)]
    return [median(values[start:end]) for start, end in pairwise(ends)]


def _rises(values: Sequence[float]) -> bool:
    """Return whether nearly all pairs of blocks rise, and clearly so."""
    blocks = _block_medians(values)
    grows = blocks[-1] >= (1 + _LEAST_GROWTH_RATIO) * blocks[0]
    return grows and _rising_ratio(blocks) >= _RISING_RATIO


def _rising_ratio(values: Sequence[float]) -> float:
    """Return the share of all pairs in which the later value is larger.

    >>> _rising_ratio([1, 3, 2])
    0.6666666666666666
    """
    pairs = list(combinations(values, 2))
    return sum(later > earlier for earlier, later in pairs) / len(pairs)


def sen_slope(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Return the slope of values with its 95% interval; None unless the rise is significant.

    The median of the slopes of all pairs, with a rank-based interval (Sen, Journal of the
    American Statistical Association 63, 1968), and Kendall's test with p < 0.001.

    >>> sen_slope([1.0, 1.0, 1.0]) is None
    True
    """
    count = len(values)
    pairs = list(combinations(range(count), 2))
    slopes = sorted((values[j] - values[i]) / (j - i) for i, j in pairs)
    rises = sum((slope > 0) - (slope < 0) for slope in slopes)
    error = sqrt(count * (count - 1) * (2 * count + 5) / 18)
    if rises <= _SURE_Z * error:
        return None
    out = NORMAL_95 * error / 2
    low = slopes[max(0, int(len(slopes) / 2 - out))]
    high = slopes[min(len(slopes) - 1, int(len(slopes) / 2 + out) + 1)]
    return low, median(slopes), high


def _grown_phase(steps: Sequence[Step]) -> str:
    """Return the name of the phase that grew the most."""
    third = len(steps) // 3

    def grown_ns(phase: Phase) -> float:
        of = [step.phase_ns.get(phase, 0) / step.sample_count for step in steps]
        return fmean(of[-third:]) - fmean(of[:third])

    return max((phase for phase in Phase if phase.in_step), key=grown_ns).name


SYMPTOMS = (
    Symptom(name="graph-kept-alive", find=_graph_kept_alive),
    Symptom(name="growing-steps", find=_growing_steps),
)
