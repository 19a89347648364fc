"""A script that uses torch.compile and gains little from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import places_of
from hasten.diagnose.shares import is_worth_telling, sampled_share
from hasten.records import LEAST_RATIO, Finding
from hasten.units import counted, duration, percent

if TYPE_CHECKING:
    from hasten.records import Interval

_LEAST_RECOMPILE_COUNT = 2
_NO_GAIN_RATIO = 0.1
"""Share of a step spent around compiled graphs above which compiling itself is doubtful."""


def _recompiles(case: Case) -> Finding | None:
    """Find a compiler that keeps recompiling, or that gave up on a function."""
    count = case.found.get("compiling.recompile_count", 0)
    gave_up = case.found.get("compiling.gave_up", False)
    share = case.share(case.found.get("compiling.step_s", ()))
    goes_on = share is not None and share.mid_ratio >= LEAST_RATIO
    if count < _LEAST_RECOMPILE_COUNT or not (gave_up or goes_on):
        return None
    spent = duration(case.found.get("compiling.recompile_s", 0.0))
    message = f"torch.compile compiled {count} times again, which took {spent}"
    if reason := case.found.get("compiling.recompile_reason"):
        message += f" ({reason})"
    message += ", then gave up: what it was to compile runs eagerly." if gave_up else "."
    return Finding(
        share=share if goes_on else None,
        message=message,
        remedy=(
            "Keep shapes and numbers the same: pad to few shapes, mark what varies with "
            "torch._dynamo.mark_dynamic, or pass dynamic=True."
        ),
        places=places_of(case.found.get("compiling.recompile_places", ())),
    )


def _around_share(case: Case, samples: str) -> Interval | None:
    """Return the share of a step spent around compiled graphs, if anything is compiled."""
    if "compiling.break_count" not in case.found:
        return None
    share = sampled_share(case.found.get(samples, 0), case.found.get("stacks.sample_count", 0))
    still = case.share(case.found.get("compiling.step_s", ()))
    if share is None or (still is not None and still.mid_ratio >= LEAST_RATIO):
        return None  # still compiling: that is a different finding
    return share


def _graph_breaks(case: Case) -> Finding | None:
    """Find graph breaks, by the time spent between one compiled graph and the next."""
    share = _around_share(case, "stacks.break_sample_count")
    count = case.found.get("compiling.break_count", 0)
    if not count or not is_worth_telling(share):
        return None
    lines = counted(count, "line")
    reason = case.found.get("compiling.break_reason", "").rstrip(".")
    return Finding(
        share=share,
        message=(
            f"Compiled graphs break at {lines}; what comes between a break and the next graph "
            f"takes {percent(share.mid_ratio)} of a step. The commonest reason: {reason}."
        ),
        remedy=(
            "Move what breaks the graph out of the compiled function: .item(), print, and "
            "branches on values."
        ),
        places=places_of(case.found.get("compiling.break_places", ())),
    )


def _compile_no_gain(case: Case) -> Finding | None:
    """Find compiled graphs so small that entering them takes a good part of the step."""
    share = _around_share(case, "stacks.compiler_sample_count")
    if case.found.get("compiling.break_count") or share is None:
        return None
    if share.low_ratio < _NO_GAIN_RATIO:
        return None
    return Finding(
        share=share,
        message=(
            f"Guards and wrappers around the compiled code take {percent(share.mid_ratio)} of a "
            "step, on top of the work itself."
        ),
        remedy=(
            "Time the script with TORCH_COMPILE_DISABLE=1; compile one large function "
            "instead of small ones, or none."
        ),
    )


SYMPTOMS = (
    Symptom(name="recompiles", find=_recompiles),
    Symptom(name="graph-breaks", find=_graph_breaks),
    Symptom(name="compile-no-gain", find=_compile_no_gain),
)
