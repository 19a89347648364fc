"""From the steps of a child to a profile."""

from __future__ import annotations

from dataclasses import replace
from statistics import quantiles
from typing import TYPE_CHECKING

from hasten import compare
from hasten.machine.caveats import OTHERS_RATIO
from hasten.protocol import Turn
from hasten.records import Phase, Profile
from hasten.search.costs import GLANCE_COUNT, WATCH_MOST_COUNT, probe_count, watch_count
from hasten.trials.plan_statistics import rare_steps, waits
from hasten.units import duration, percent, step_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.records import Diagnosis, Plan, Step, Torch, Traits
    from hasten.trials.plan_statistics import PlanStatistics
    from hasten.trials.runner import TrialRunner

_RARE_MOST_COUNT = 4000
_OVERHEAD_S = 8.0
_OVERHEAD_LEAST_COUNT = 12
_OVERHEAD_MOST_COUNT = 120
_READ_AGAIN_RATIO = 1 / 3


def begin(runner: TrialRunner, plan: Plan) -> None:
    """Start the script under `plan`, and run its first steps.

    Raises:
        TooFewSteps: it ends before anything can be measured.
    """

    def run() -> None:
        runner.pace.room(1, spent_count=1)
        runner.children.trial(plan)

    runner.repeat(run)


def observe(
    runner: TrialRunner,
    plan: Plan,
    *,
    step_count: int | None = None,
    paced: Callable[[float], None] | None = None,
) -> Profile:
    """Profile `step_count` steps of the script under `plan`; by default some seconds of them.

    Args:
        runner: runs it.
        plan: its levers.
        step_count: how many steps.
        paced: called with the seconds of the quicker of two steps, once these are known.
    """
    pace = runner.pace
    glance, _ = runner.steps(plan, GLANCE_COUNT)
    if paced is not None:
        paced(min(step.wall_s for step in glance))
    unit = runner.facts(plan).unit
    if count := probe_count(pace.step_s, cycle_count=pace.cycle_count, waits=waits(glance)):
        runner.steps(plan, count)
    is_free = step_count is None
    if step_count is None:
        step_count = watch_count(
            pace.step_s,
            cycle_count=pace.repeat_count(plan),
            pass_count=runner.rhythm.pass_count,
        )
        if pace.life_count is not None:
            step_count = max(2, min(step_count, pace.life_count // 2))
    steps, used = runner.steps(plan, step_count)
    if is_free and len(steps) == WATCH_MOST_COUNT and rare_steps([step.wall_s for step in steps]):
        # Such as one with a rollout, once in some hundred: after how many is to be seen.
        steps, used = runner.steps(plan, watch_count(pace.step_s, most_count=_RARE_MOST_COUNT))
    pace.check_memory(used["peak_rss_bytes"], used.get("spare_device_bytes"))
    return summarise(steps, unit=unit, used=used)


def summarise(steps: list[Step], *, unit: str, used: dict[str, float]) -> Profile:
    """Return the profile of a run of steps.

    Args:
        steps: at least two.
        unit: what a sample is: `samples`, `tokens` or `steps`.
        used: faults and CPU seconds of these steps together, and the rest of `TurnsRun.usage`.
    """
    walls = sorted(step.wall_s for step in steps)
    low_s, middle_s, high_s = quantiles(walls, n=4, method="inclusive")
    phases = {
        phase: sum(step.phase_ns.get(phase, 0) for step in steps) * 1e-9 / len(steps)
        for phase in Phase
    }
    whole_s = sum(phases.values()) * len(steps)
    count, peak_device = used.get("device_count"), used.get("peak_device_bytes")
    return Profile(
        step_s=middle_s,
        step_low_s=low_s,
        step_high_s=high_s,
        sample_unit=unit,
        sample_count=sum(step.sample_count for step in steps) / len(steps),
        phase_s={phase: seconds for phase, seconds in phases.items() if seconds},
        step_count=len(steps),
        peak_rss_bytes=int(used["peak_rss_bytes"]),
        device_count=None if count is None else int(count),
        peak_device_bytes=None if peak_device is None else int(peak_device),
        others_device_ratio=used.get("others_device_ratio"),
        caught_up_ratio=used.get("caught_up_ratio"),
        faults_count=used["faults_count"] / len(steps),
        cores_ratio=used["cpu_s"] / whole_s if whole_s else None,
    )


def others_note(seen: Profile) -> tuple[str, ...]:
    """Return a sentence about those who share the accelerator of a script; none without any."""
    ratio = seen.others_device_ratio
    if ratio is None or ratio < OTHERS_RATIO:
        return ()
    return (
        f"Other processes hold {percent(ratio)} of the accelerator's memory: timings beside them "
        "are noisy, and trials may run out of it.",
    )


def idle_note(seen: Profile, torch: Torch | None, traits: Traits) -> tuple[str, ...]:
    """Say where a script in one process trains on one of several accelerators."""
    count = len(torch.accelerators) if torch is not None and traits.local_rank_count == 1 else 0
    if seen.device_count != 1 or count <= 1:
        return ()
    return (
        f"The script trains on 1 of the {count} accelerators that torch sees. To use more, start "
        "one process for each: torchrun and DistributedDataParallel.",
    )


def storage_note(found: Diagnosis, first: Profile, later: Profile) -> tuple[str, ...]:
    """Say where data came from storage at first and from memory when the gain was measured.

    Args:
        found: in the first launch.
        first: that launch.
        later: the script in the launches of the confirmation, which read the same files again.
    """
    is_slow = any(finding.name == "slow-storage" for finding in found.findings)
    before_s, after_s = (seen.phase_s.get(Phase.DATA, 0.0) for seen in (first, later))
    if not is_slow or after_s > _READ_AGAIN_RATIO * before_s:
        return ()
    return (
        f"A step of the first launch waited {duration(before_s)} for its data, a later one "
        f"{duration(after_s)}: the files were in memory by then. Where they do not fit in memory, "
        "the gain will differ.",
    )


def step_note(traits: Traits) -> tuple[str, ...]:
    """Say what a step is where it is not one batch with one step of an optimizer."""
    parts = step_parts(traits.step_batch_count, traits.optimizer.step_count)
    return (f"A step here is {parts}; figures per step are of all that.",) if parts else ()


def where(seen: Profile) -> str:
    """Say in one line where the steps of a script go."""
    shares = sorted(
        ((seen.share_ratio(phase), phase) for phase in seen.phase_s if phase.in_step), reverse=True
    )
    parts = ", ".join(f"{phase} {percent(share)}" for share, phase in shares[:3])
    return f"{duration(seen.mean_step_s)} a step: {parts}"


def retimed(
    seen: Profile, statistics: PlanStatistics, plan: Plan, costs_s: Sequence[float]
) -> Profile:
    """Return a profile with step times that were measured in turns with another plan.

    Two profiles taken at different times cannot be compared: the machine may have changed. The
    costs are seconds per sample of each block; fewer than two leave the profile as it is.
    """
    phase_s = statistics.phase_s(plan)
    if len(costs_s) < 2 or phase_s is None:
        return seen
    low_s, middle_s, high_s = quantiles(costs_s, n=4, method="inclusive")
    return replace(
        seen,
        step_s=middle_s * seen.sample_count,
        step_low_s=low_s * seen.sample_count,
        step_high_s=high_s * seen.sample_count,
        phase_s={phase: seconds for phase, seconds in phase_s.items() if seconds},
        step_count=statistics.step_count(plan),
    )


def measure_own_cost(runner: TrialRunner, seen: Profile, plan: Plan) -> Profile:
    """Add what our own seams cost: steps with them against steps without, in pairs."""
    count = min(_OVERHEAD_MOST_COUNT, int(_OVERHEAD_S / (4 * max(1e-6, seen.step_s))))
    if count < _OVERHEAD_LEAST_COUNT:  # microseconds do not matter in such long steps
        return seen
    # In the first turn of a pair (the baseline) our seams are taken out.
    pairs = runner.within((plan,), count, (Turn(0, 1, 1, False), Turn(0, 1, 1, True)))
    if len(pairs) < _OVERHEAD_LEAST_COUNT:  # a short script: no interval, no claim
        return seen
    slower = compare.settle(pairs).speedup
    return replace(seen, own_cost=compare.inverse(slower))
