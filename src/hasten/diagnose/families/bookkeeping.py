"""What Python does in each step: loops of tiny calls, reporting, debug modes, other libraries."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hasten.diagnose.case import Case, Symptom
from hasten.diagnose.costs import (
    LEAST_MEASURED_COUNT,
    calls_a_step,
    exposed_share,
    operation_s,
    places_of,
    quiet_s,
    quiet_step_s,
    share_of,
)
from hasten.diagnose.shares import is_worth_telling, sampled_share
from hasten.records import Finding, Phase
from hasten.units import duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import HotLine, Interval

_LEAST_TENSORS_COUNT = 20
_LEAST_LOOP_COUNT = 50
_LEFT_ON_RATIO = 0.9
_PHASES = {Phase.FORWARD, Phase.LOSS, Phase.OTHER}
_LEAST_TURN_COUNT = 50
_TINY_CALL_S = 150e-6
"""Longest torch call, in seconds, in which set-up is still a good part of the time."""


def _per_parameter_loops(case: Case) -> Finding | None:
    """Find updates that process many small tensors one by one."""
    told = case.found.get("operations.loops", ())
    loops = [loop for loop in told if loop["tensors_count"] >= _LEAST_TENSORS_COUNT]
    if sum(loop["count"] for loop in loops) < _LEAST_LOOP_COUNT:
        return None
    inside = [loop for loop in loops if loop["in_optimizer"]]
    outside = [loop for loop in loops if not loop["in_optimizer"]]
    in_optimizer_s = _optimizer_s(case) if inside else None
    by_hand_s = _by_hand_s(case, outside)
    parts = [part for part in (in_optimizer_s, by_hand_s) if part]
    share = share_of(case, [sum(each) for each in zip(*parts, strict=True)])
    if share is None:
        return None
    costliest = sorted(loops, key=lambda loop: -fmean(loop["seconds"]))
    count = sum(loop["count"] for loop in loops)
    tensors_count = max(loop["tensors_count"] for loop in loops)
    is_optimizer = fmean(in_optimizer_s or [0.0]) >= fmean(by_hand_s or [0.0])
    return Finding(
        share=share,
        phase=Phase.OPTIMIZER if is_optimizer else Phase.OTHER,
        message=(
            f"The update makes {count} operations on small tensors one by one, {tensors_count} of "
            f"them different: {percent(share.mid_ratio)} of a step."
        ),
        remedy=(
            _optimizer_remedy(case)
            if is_optimizer
            else "Go over all tensors at once: torch._foreach_mul_, _foreach_lerp_ and the like."
        ),
        places=places_of((loop["path"], loop["line"]) for loop in costliest),
    )


def _optimizer_s(case: Case) -> Sequence[float]:
    """Return the optimizer's time beyond its operations on large tensors."""
    phase_s = quiet_s(case, Phase.OPTIMIZER)
    return [max(0.0, phase_s - large_s) for large_s in operation_s(case, "large_update")]


def _by_hand_s(case: Case, loops: Sequence[Any]) -> Sequence[float]:
    """Return the time of loops outside an optimizer, corrected for our timing overhead."""
    ratio = case.found.get("operations.price_ratio", 1.0)
    return [ratio * sum(each) for each in zip(*(loop["seconds"] for loop in loops), strict=True)]


def _forms(case: Case) -> Sequence[str]:
    """Return the variants that torch offers of the optimizer's class; empty if unknown."""
    forms: Sequence[str] = case.found.get("operations.optimizer_forms", ())
    return forms


def _optimizer_remedy(case: Case) -> str:
    """Name an option that the optimizer's class accepts; others would raise an error."""
    if case.traits.optimizer.has_sparse_gradients and "fused" in _forms(case):
        return "Give the weights with dense gradients an optimizer of their own, with fused=True."
    option = next((form for form in ("fused", "foreach") if form in _forms(case)), None)
    if option:
        return f"Pass {option}=True to the optimizer."
    return (
        "Let the optimizer update lists of tensors: torch._foreach_mul_, torch._foreach_lerp_ "
        "and the like in its step."
    )


def _step_reporting(case: Case) -> Finding | None:
    """Find prints, progress bars, writers and `.item()` reads, by the time spent in them."""
    on_host_s = case.found.get("bookkeeping.reporting_s", ())
    from_device_s = case.found.get("bookkeeping.waiting_s") or [0.0] * len(on_host_s)
    share = exposed_share(case, on_host_s, from_device_s)
    if not is_worth_telling(share):
        return None
    count = case.found.get("bookkeeping.reports_count", 0.0)
    does = "reports (print, progress bars, loggers, .item())"
    remedy = "Report every hundredth step, and keep running sums as tensors until then."
    if case.found.get("bookkeeping.only_reads"):
        does = "reads numbers from tensors (.item(), .tolist(), .cpu() and the like)"
        remedy = (
            "If these numbers are only reported, read them every hundredth step, and keep running "
            "sums as tensors until then."
        )
    return Finding(
        share=share,
        message=(
            f"The script {does} in {calls_a_step(count)}, and that takes "
            f"{percent(share.mid_ratio)} of a step."
        ),
        remedy=remedy,
        places=places_of(case.found.get("bookkeeping.places", ())),
    )


def _debug_mode(case: Case) -> Finding | None:
    """Find anomaly detection and profilers left on, by what they do in each step."""
    anomaly, profiler = case.traits.anomaly_ratio or 0.0, case.traits.profiler_ratio or 0.0
    on = [f"anomaly detection in {percent(anomaly)} of the backward passes"] if anomaly else []
    if profiler >= _LEFT_ON_RATIO:
        on.append(f"a profiler in {percent(profiler)} of the backward passes")
    if not on:
        return None
    share = _debug_share(case)
    measured = len(case.found.get("operations.steps", ())) >= LEAST_MEASURED_COUNT
    if share is None and measured:
        return None
    cost = f": at least {percent(share.mid_ratio)} of a step" if share else ""
    return Finding(
        share=share,
        message=f"The script debugs while it trains, {' and '.join(on)}{cost}.",
        remedy="Switch them off: torch.autograd.set_detect_anomaly(False), no profiler.",
        places=places_of(case.found.get("bookkeeping.debug_places", ())),
    )


def _debug_share(case: Case) -> Interval | None:
    """Return the share of a step spent on tracebacks, NaN checks and recording operations."""
    tracebacks_s = case.found.get("bookkeeping.traceback_s") or [0.0]
    recording_s = case.found.get("bookkeeping.recording_s", 0.0)
    counts = case.found.get("operations.count", ())
    return share_of(case, [
        fmean(tracebacks_s) + nan_s + recording_s * count
        for nan_s, count in zip(operation_s(case, "nan_check"), counts, strict=True)
    ])  # fmt: skip


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
    loops = [
        (hot, one)
        for hot, one in lines
        if one["turn_count"] >= _LEAST_TURN_COUNT and _call_s(case, hot, one) <= _TINY_CALL_S
    ]
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


def _other_libraries(case: Case) -> Finding | None:
    """Find what the loop does beside training, by the samples in libraries other than torch."""
    counts = Counter(case.found.get("stacks.libraries", {}))
    share = sampled_share(counts.total(), case.found.get("stacks.sample_count", 0))
    if not is_worth_telling(share):
        return None
    names = " and ".join(name for name, _ in counts.most_common(2))
    return Finding(
        share=share,
        is_of_all=True,
        message=(
            f"The loop works outside of torch, in {names}, for {percent(share.mid_ratio)} of the "
            "time."
        ),
        remedy=(
            "Do what only reports more rarely or in a process beside the loop, and the rest for "
            "whole batches."
        ),
        places=tuple(
            hot.place
            for hot in case.hot_lines
            if hot.phase == Phase.OTHER and hot.calls.partition(".")[0] in counts
        ),
    )


SYMPTOMS = (
    Symptom(name="per-parameter-loops", find=_per_parameter_loops, on_host=True),
    Symptom(name="step-reporting", find=_step_reporting),
    Symptom(name="debug-mode", find=_debug_mode),
    Symptom(name="python-loops", find=_python_loops, on_host=True),
    Symptom(
        name="other-libraries",
        find=_other_libraries,
        on_host=True,
        explained_by=frozenset({"step-reporting"}),
    ),
)
