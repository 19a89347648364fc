"""The next race: a pure function of the knobs and of the races so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from upshift.records import Comparison, Plan, Switch
from upshift.search.story import Story

if TYPE_CHECKING:
    from collections.abc import Sequence

    from upshift.search.knob import Knob
    from upshift.search.proposal import Proposal

LEAST_RATIO = 0.02


def propose(
    knobs: Sequence[Knob],
    history: Sequence[Comparison],
    *,
    least_ratio: float = LEAST_RATIO,
    launches_left: int,
) -> Proposal | None:
    """Return the next race to run, None when the search is over.

    The same arguments give the same answer, so a search resumes from its journal. The order of
    the knobs is part of the search: keep it from the first proposal to the last.

    Args:
        knobs: what may be turned, most promising first, see `bounds`.
        history: every comparison so far, failures included.
        least_ratio: the gain that is worth a lever (0.02 is 2 %).
        launches_left: at 0 only races between levers that need no fresh process are proposed.
    """
    return _replay(knobs, history, least_ratio, launches_left=launches_left)[1]


def incumbent(
    knobs: Sequence[Knob], history: Sequence[Comparison], *, least_ratio: float = LEAST_RATIO
) -> Plan:
    """Return the best plan so far, at any point of the search."""
    return retell(knobs, history, least_ratio=least_ratio).plan


def retell(knobs: Sequence[Knob], history: Sequence[Comparison], *, least_ratio: float) -> Story:
    """Return the story as far as the history goes, with no further race permitted."""
    return _replay(knobs, history, least_ratio, launches_left=None)[0]


def _replay(
    knobs: Sequence[Knob],
    history: Sequence[Comparison],
    least_ratio: float,
    *,
    launches_left: int | None,
) -> tuple[Story, Proposal | None]:
    known = {(seen.baseline, seen.candidate): seen for seen in history}
    story = Story(knobs=knobs, least_ratio=least_ratio)
    steps = story.tell()
    try:
        asked = next(steps)
        while True:
            answer = known.get((asked.baseline, asked.candidate))
            if answer is None and _may_run(asked, launches_left):
                return story, asked
            asked = steps.send(answer)
    except StopIteration:
        return story, None


def _may_run(asked: Proposal, launches_left: int | None) -> bool:
    if launches_left is None:
        return False
    return launches_left > 0 or asked.switch is not Switch.LAUNCH
