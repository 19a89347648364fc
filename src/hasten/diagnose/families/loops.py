"""Python loops that a single operation could replace: over samples, classes, time steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import quiet_step_s
from hasten.diagnose.shares import is_worth_telling, sampled_share
from hasten.records import Finding, Phase
from hasten.units import duration, percent

if TYPE_CHECKING:
    from hasten.records import HotLine

_PHASES = {Phase.FORWARD, Phase.LOSS, Phase.OTHER}
_LEAST_TURN_COUNT = 50
_TINY_CALL_S = 150e-6
"""Longest torch call, in seconds, in which set-up is still a good part of the time."""


def _python_loops(case: Case) -> Finding | None:
    """Find lines that make many tiny calls in one pass, by the samples that hit them."""
    counted = {(one["path"], one["line"]): one for one in case.found.get("loops.lines", ())}
    total_count = case.found.get("stacks.sample_count", 0)
    training_count = case.found.get("stacks.training_sample_count", 0)
    lines = [
        (hot, counted[place])
        for hot in case.hot_lines
        if hot.phase in _PHASES and (place := (hot.place.path, hot.place.line)) in counted
    ]
    loops = [(hot, one) for hot, one in lines if _is_loop(case, hot, one)]
    share = sampled_share(sum(hot.share_ratio for hot, _ in loops) * total_count, training_count)
    if not loops or not is_worth_telling(share):
        return None
    hot, one = loops[0]
    each = duration(_call_s(case, hot, one))
    where = "One line runs" if len(loops) == 1 else f"{len(loops)} lines run"
    return Finding(
        share=share,
        message=(
            f"{where} up to {max(one['turn_count'] for _, one in loops)} times in one pass with "
            f"about {each} for each call of torch: {percent(share.mid_ratio)} of a step."
        ),
        remedy=(
            "Do it on whole tensors: stack the samples, classes or time steps and call torch once."
        ),
        places=tuple(hot.place for hot, _ in loops),
    )


def _call_s(case: Case, hot: HotLine, one: dict[str, Any]) -> float:
    """Return the seconds of one torch call on a line, including the Python around it."""
    total_count = case.found.get("stacks.sample_count", 0)
    training_count = max(1, case.found.get("stacks.training_sample_count", 0))
    spent_s = hot.share_ratio * total_count / training_count * quiet_step_s(case)
    return float(spent_s / one["call_count"] / case.found.get("loops.pass_ratio", 1.0))


def _is_loop(case: Case, hot: HotLine, one: dict[str, Any]) -> bool:
    return one["turn_count"] >= _LEAST_TURN_COUNT and _call_s(case, hot, one) <= _TINY_CALL_S


SYMPTOMS = (Symptom(name="python-loops", find=_python_loops, on_host=True),)
