"""How long the loop's thread waited for a CPU, and who had it meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.records import Phase

if TYPE_CHECKING:
    from hasten.diagnose.case import Case
    from hasten.records import Interval

_LEAST_LOAD_RATIO = 0.02  # of the CPUs: the kernel counts their time in steps of 10 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class CompetingProcesses:
    """Who wants the CPUs that the loop's thread may run on, in CPUs on average.

    Attributes:
        team_ratio: threads of the script's own process beyond the CPUs that there are.
        workers_ratio: loader workers, and what other processes the script has started.
        others_ratio: everybody else.
    """

    team_ratio: float
    workers_ratio: float
    others_ratio: float

    @property
    def total_ratio(self) -> float:
        """All of them."""
        return self.team_ratio + self.workers_ratio + self.others_ratio


def read_rivals(case: Case) -> CompetingProcesses | None:
    """Return who wanted the CPUs, None where the kernel did not say.

    A process wants the time in which its threads ran and that in which they waited to. Of
    others only the first is known.
    """
    keys = ("wall_s", "cpus_count", "own_run_s", "own_wait_s", "busy_s")
    told = [case.found.get(f"processors.{key}") for key in keys]
    if any(value is None for value in told):
        return None
    wall_s, cpus_count, own_run_s, own_wait_s, busy_s = (float(value or 0.0) for value in told)
    if not wall_s:
        return None
    each = case.found.get("workers.each", ())
    # Workers that come and go, as with each epoch, are no strangers either.
    children_run_s = float(case.found.get("processors.children_run_s") or 0.0)
    workers_run_s = max(children_run_s, sum(worker["run_s"] for worker in each))
    others_ratio = (busy_s - own_run_s - workers_run_s) / wall_s
    return CompetingProcesses(
        team_ratio=max(0.0, (own_run_s + own_wait_s) / wall_s - cpus_count),
        workers_ratio=(workers_run_s + sum(worker["wait_s"] for worker in each)) / wall_s,
        others_ratio=others_ratio if others_ratio >= _LEAST_LOAD_RATIO * cpus_count else 0.0,
    )


def quota_share(case: Case) -> Interval | None:
    """Return the share of the steps in which a quota held the loop's thread up.

    The time that a quota takes is counted on each CPU, so the wait of the loop's thread bounds
    it from above.
    """
    waits, held = (case.found.get(f"processors.{key}", ()) for key in ("waits_s", "throttled_s"))
    if not waits or not held:
        return None
    return case.share_of_all([min(pair) for pair in zip(waits, held, strict=False)])


def wait_share(case: Case, part_ratio: float = 1.0) -> Interval | None:
    """Return the share of the steps in which the loop's thread waited for others to leave a CPU.

    Args:
        case: the case.
        part_ratio: which part of these waits is asked for.
    """
    waits = case.found.get("processors.waits_s", ())
    if not waits:
        return None
    held = case.found.get("processors.throttled_s") or [0.0] * len(waits)
    pairs = zip(waits, held, strict=False)
    return case.share_of_all([part_ratio * max(0.0, wait - by_quota) for wait, by_quota in pairs])


def blamed_share(case: Case, rival: str) -> Interval | None:
    """Return the share of the steps in which the loop's thread waited for one kind of rival.

    The waits are divided as the CPUs that the rivals wanted.

    Args:
        case: the case.
        rival: `team`, `workers` or `others`.
    """
    rivals = read_rivals(case)
    if rivals is None or not rivals.total_ratio:
        return None
    return wait_share(case, getattr(rivals, f"{rival}_ratio") / rivals.total_ratio)


def starved_share(case: Case) -> Interval | None:
    """Return the share of the steps that the loop and its workers lost by waiting for CPUs.

    Where the loop waits for a batch, that is late by the share of their time in which the
    workers waited; elsewhere the loop's own thread waits for CPUs that workers have.
    """
    each = case.found.get("workers.each", ())
    wanted_s = sum(worker["run_s"] + worker["wait_s"] for worker in each)
    if not wanted_s or not case.steps:
        return None
    late_ratio = sum(worker["wait_s"] for worker in each) / wanted_s
    late = [late_ratio * step.phase_ns.get(Phase.DATA, 0) * 1e-9 for step in case.steps]
    rivals = read_rivals(case)
    if rivals is not None and rivals.total_ratio:
        part_ratio = rivals.workers_ratio / rivals.total_ratio
        waits = case.found.get("processors.waits_s", ())
        for index, wait_s in enumerate(waits[: len(late)]):
            late[index] += part_ratio * wait_s
    return case.share(late)
