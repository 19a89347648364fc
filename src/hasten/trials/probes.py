"""What a runner can be asked besides races: our own cost, and a closer look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.protocol import Turn

if TYPE_CHECKING:
    from hasten.records import Pair, Plan, Step
    from hasten.trials.runner import TrialRunner


def overhead(runner: TrialRunner, plan: Plan, count: int) -> list[Pair]:
    """Run pairs of steps with our seams taken out (baseline) and put in (candidate)."""
    return runner.within((plan,), count, (Turn(0, 1, 1, False), Turn(0, 1, 1, True)))


def examine(
    runner: TrialRunner, plan: Plan, count: int, *, least_count: int, most_s: float
) -> tuple[list[Step], dict[str, Any]]:
    """Look closely at some steps, as many as the script has room for; they are not timed.

    Args:
        runner: where the script runs.
        plan: what the user set.
        count: the most steps.
        least_count: steps that are enough once `most_s` have passed.
        most_s: seconds that are enough.
    """

    def look() -> tuple[list[Step], dict[str, Any]]:
        room = runner.pace.room(count)
        trial = runner.children.with_life((plan,), 0, room)
        timeout_s = runner.pace.timeout_s(room)
        return trial.examine(room, timeout_s=timeout_s, least_count=least_count, most_s=most_s)

    return runner.repeat(look)
