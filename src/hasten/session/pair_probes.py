"""Time steps under a lever's probe against steps as they are, for findings that need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hasten import compare
from hasten.errors import HastenError
from hasten.lever import discover
from hasten.protocol import Turn
from hasten.records import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.lever import ScriptContext
    from hasten.records import Pair, Plan, Setting
    from hasten.trials.runner import TrialRunner

_LEAST_COUNT, _MOST_COUNT = 12, 60
_BRIEF_COUNT, _BRIEF_S = 3, 6.0  # enough to see a clear loss, and a third of a race
_MEASURED_S = 3.0  # for a measurement, if no loss is seen
CLEAR_RATIO, _PLAIN_RATIO = 0.95, 0.8  # of three pairs or more, of two
_LEAST_SHARE_RATIO = 0.2
_COMPUTE = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER)


@dataclass(slots=True)
class Probed:
    """What probes have shown.

    Attributes:
        found: the setting of each probe and how many times faster it is, for `Case.found`, such as
            `threads.setting` and `threads.mid_ratio`; only where there are pairs enough to tell.
        slower: see `Diagnosis.slower`.
    """

    found: dict[str, Any] = field(default_factory=dict)
    slower: dict[str, tuple[Setting, float]] = field(default_factory=dict)


def probe_levers(
    runner: TrialRunner, plan: Plan, context: ScriptContext, *, seconds: float
) -> Probed:
    """Run pairs of steps as they are and under the probe of each lever that has one.

    All pairs together take about so many seconds. Where that is too short to measure a gain, a few
    show a clear loss, and save its race; those of each probe take up to six seconds. Where they
    show none, enough for a measurement follow if they take three. There are none where even a few
    take too long, or the CPU does too little of the step.
    """
    seen = context.baseline
    if seen is None or seen.share_ratio(Phase.TRANSFER):
        return Probed()
    if seen.share_ratio(*_COMPUTE) < _LEAST_SHARE_RATIO:
        return Probed()
    probes = [
        (name, lever.probe.fact, setting)
        for name, lever in discover().items()
        if lever.probe
        and name not in dict(plan.settings)
        and (setting := lever.probe.setting(context)) is not None
    ]
    cycle = runner.pace.repeat_count(plan)
    turns = (Turn(0, 1, cycle, True), Turn(1, 1, cycle, True))
    pair_s = 2 * (1 + cycle) * max(1e-6, seen.span_s) * max(1, len(probes))
    probed = Probed()
    for name, fact, setting in probes:
        plans = plan, plan.with_lever(name, setting)
        try:
            pairs = _pairs_of(runner, plans, turns, pair_s=pair_s, seconds=seconds)
        except HastenError:
            runner.children.clear()  # one has died, or is an answer behind
            return probed
        if _are_slower(pairs):
            probed.slower[name] = setting, compare.settle(pairs).speedup.mid_ratio
        if len(pairs) >= _LEAST_COUNT:
            faster = compare.settle(pairs).speedup
            probed.found |= {
                f"{fact}.setting": setting,
                f"{fact}.low_ratio": faster.low_ratio,
                f"{fact}.mid_ratio": faster.mid_ratio,
                f"{fact}.high_ratio": faster.high_ratio,
            }
    return probed


def _pairs_of(
    runner: TrialRunner,
    plans: tuple[Plan, Plan],
    turns: tuple[Turn, Turn],
    *,
    pair_s: float,
    seconds: float,
) -> Sequence[Pair]:
    count = min(_MOST_COUNT, int(seconds / pair_s))
    if count >= _LEAST_COUNT:
        return runner.within(plans, count, turns)
    pairs = _few_pairs(runner, plans, turns, pair_s=pair_s)
    if pairs and not _are_slower(pairs) and _LEAST_COUNT * pair_s <= _MEASURED_S:
        return runner.within(plans, _LEAST_COUNT, turns)
    return pairs


def _few_pairs(
    runner: TrialRunner, plans: tuple[Plan, Plan], turns: tuple[Turn, Turn], *, pair_s: float
) -> list[Pair]:
    """Run three pairs one by one, or two that show it, while three take six seconds at most."""
    pairs: list[Pair] = []
    left_s = _BRIEF_S
    while len(pairs) < _BRIEF_COUNT and (_BRIEF_COUNT - len(pairs)) * pair_s <= left_s:
        found = runner.within(plans, 1, turns)
        if not found:
            break
        pairs += found
        if _are_slower(pairs):
            break
        step_count = turns[0].skip_count + turns[0].step_count
        pair_s = step_count * (found[0].baseline_s + found[0].candidate_s)
        left_s -= pair_s
    return pairs


def _are_slower(pairs: Sequence[Pair]) -> bool:
    """Return whether pairs show a clear loss: by their interval, or each of a few."""
    if len(pairs) >= _LEAST_COUNT:
        return compare.settle(pairs).speedup.high_ratio < CLEAR_RATIO
    ratio = CLEAR_RATIO if len(pairs) >= _BRIEF_COUNT else _PLAIN_RATIO
    return len(pairs) > 1 and all(pair.baseline_s < ratio * pair.candidate_s for pair in pairs)
