"""Time steps under a lever's probe against steps as they are, for findings that need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten import compare
from hasten.errors import HastenError
from hasten.lever import discover
from hasten.protocol import Turn
from hasten.records import Phase

if TYPE_CHECKING:
    from hasten.lever import ScriptContext
    from hasten.records import Plan
    from hasten.trials.runner import TrialRunner

_LEAST_COUNT, _MOST_COUNT = 12, 60
_LEAST_SHARE_RATIO = 0.2
_COMPUTE = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER)


def probe_levers(
    runner: TrialRunner, plan: Plan, context: ScriptContext, *, seconds: float
) -> dict[str, Any]:
    """Run pairs of steps as they are and under the probe of each lever that has one.

    All pairs together take about so many seconds.

    Returns:
        The setting of each probe and how many times faster it is, for `Case.found`, such as
        `threads.setting` and `threads.mid_ratio`; nothing where the time is too short to tell, or
        the CPU does too little of the step.
    """
    seen = context.baseline
    if seen is None or seen.share_ratio(Phase.TRANSFER):
        return {}
    if seen.share_ratio(*_COMPUTE) < _LEAST_SHARE_RATIO:
        return {}
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
    pair_count = min(_MOST_COUNT, int(seconds / pair_s))
    found: dict[str, Any] = {}
    for name, fact, setting in probes if pair_count >= _LEAST_COUNT else ():
        try:
            pairs = runner.within((plan, plan.with_lever(name, setting)), pair_count, turns)
        except HastenError:
            runner.children.clear()  # one has died, or is an answer behind
            return found
        if len(pairs) >= _LEAST_COUNT:
            faster = compare.settle(pairs).speedup
            found |= {
                f"{fact}.setting": setting,
                f"{fact}.low_ratio": faster.low_ratio,
                f"{fact}.mid_ratio": faster.mid_ratio,
                f"{fact}.high_ratio": faster.high_ratio,
            }
    return found
