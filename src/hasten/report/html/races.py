"""What each lever gained, and the pairs behind each verdict."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from math import log
from types import SimpleNamespace
from typing import TYPE_CHECKING

from hasten.records import LEAST_RATIO, Plan, Verdict
from hasten.report.html import shapes
from hasten.report.wording import SAYS_NOTHING_RATIO, interval
from hasten.units import counted, duration, percent, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.records import Comparison, Interval, Tuning


VERDICTS = {
    Verdict.WIN: "faster",
    Verdict.DROP: "no gain",
    Verdict.UNDECIDED: "undecided",
    Verdict.FAIL: "failed",
}

_NAMED_COUNT = 2


def waterfall(tuning: Tuning) -> SimpleNamespace | None:
    """Return what each lever gained in the races of the search; None if no race counted.

    The kind of a row selects its style: start, gain, guess (a gain whose interval holds 1), loss,
    out (a lever that was not needed), lost (taken out after the search) or fresh.
    """
    final = tuning.confirmed.candidate if tuning.confirmed else tuning.plan
    path = moves(tuning.races, final)
    if not path:
        return None
    levels = [1.0]
    for move in path:
        levels.append(levels[-1] * move.time_ratio)
    fresh = tuning.confirmed.speedup if tuning.confirmed else None
    most = max([*levels, *([1 / fresh.low_ratio] if fresh else [])])
    scale = shapes.Scale(low=0.0, high=1.04 * most)
    falls = [
        SimpleNamespace(
            kind="start", name="baseline", detail="", level="100%", rest=100 * scale.at(1.0),
            change=0.0,
        )
    ]  # fmt: skip
    for move, before, after in zip(path, levels, levels[1:], strict=False):
        falls.append(_fall(move, before, after, scale))
    falls += _taken_out(tuning, path[-1].after, final)
    if fresh and tuning.confirmed:
        falls.append(_fresh(tuning.confirmed, fresh, scale))
    ticks = [
        shapes.Tick(at=100 * scale.at(value), label=f"{100 * value:.0f}%")
        for value in scale.round_ticks()
    ]
    return SimpleNamespace(falls=falls, ticks=ticks)


def strips(tuning: Tuning) -> SimpleNamespace | None:
    """Return the pairs of every comparison on one axis; None if nothing was compared."""
    fresh = [tuning.confirmed] if tuning.confirmed else []
    known = [*fresh, *tuning.races]
    if not any(seen.pairs for seen in known):
        return None
    final = fresh[0].candidate if fresh else tuning.plan
    counted = [move.seen for move in moves(tuning.races, final)]
    logs = [pair.log_ratio for seen in known for pair in seen.pairs]
    sure = [seen.speedup for seen in known if seen.speedup and _tells(seen.speedup)]
    ends = [log(ratio) for one in sure for ratio in (one.low_ratio, one.high_ratio)]
    scale = shapes.ratio_span(logs, always=ends)
    return SimpleNamespace(
        fresh=[_strip(seen, "the plan, on fresh launches", scale=scale) for seen in fresh],
        taken=[_strip(seen, *change(seen), scale=scale) for seen in counted],
        others=[
            _strip(seen, *change(seen), scale=scale)
            for seen in tuning.races
            if not any(seen is one for one in counted)
        ],
        ticks=shapes.ratio_ticks(scale),
        one_at=shapes.ratio_at(scale, 1.0),
    )


def change(seen: Comparison) -> tuple[str, str]:
    """Name what a race was about, and spell it out separately if it is too long for a name."""
    own, other = dict(seen.baseline.settings), dict(seen.candidate.settings)
    named = []
    for name in sorted(seen.baseline.differing(seen.candidate)):
        if name not in other:
            named.append(f"without {name}")
        elif name in own:
            named.append(f"{name}={own[name]} to {other[name]}")
        else:
            named.append(f"{name}={other[name]}")
    whole = ", ".join(named) or "the same plan twice"
    if len(named) <= _NAMED_COUNT:
        return whole, ""
    return f"{len(named)} levers together", f"{whole}: "


def _tells(ratio: Interval) -> bool:
    return ratio.high_ratio / ratio.low_ratio < SAYS_NOTHING_RATIO


def _fall(move: Move, before: float, after: float, scale: shapes.Scale) -> SimpleNamespace:
    out = move.after == move.seen.baseline
    name, spelt = change(move.seen)
    if out:
        names = sorted(move.before.differing(move.after))
        name, spelt = f"left out again: {', '.join(names)}", ""
    figure = interval(move.seen.speedup) if move.seen.speedup else ""
    with_them = "with it " if out else ""
    return SimpleNamespace(
        kind="out" if out else _kind(move),
        name=name,
        detail=f"{spelt}{with_them}{figure}, {counted(len(move.seen.pairs), 'pair')}",
        level=percent(after),
        rest=100 * scale.at(min(before, after)),
        change=100 * (scale.at(max(before, after)) - scale.at(min(before, after))),
    )


def _kind(move: Move) -> str:
    if move.time_ratio > 1.0:
        return "loss"
    return "gain" if move.seen.speedup and move.seen.speedup.is_gain else "guess"


def _taken_out(tuning: Tuning, searched: Plan, final: Plan) -> list[SimpleNamespace]:
    """Return what the proof or the fresh launches removed from the plan of the search."""
    lost = {name for name, _ in searched.settings} - {name for name, _ in final.settings}
    reasons: dict[str, list[str]] = {}
    for row in tuning.levers:
        if row.lever in lost:
            reasons.setdefault(f"{row.outcome}: {row.why}", []).append(row.lever)
    return [
        SimpleNamespace(kind="lost", name=f"taken out: {', '.join(names)}", detail=why, level="")
        for why, names in reasons.items()
    ]


def _fresh(seen: Comparison, speedup: Interval, scale: shapes.Scale) -> SimpleNamespace:
    ends = (1 / speedup.high_ratio, 1 / speedup.low_ratio)
    return SimpleNamespace(
        kind="fresh",
        name="the plan on fresh launches",
        detail=f"{interval(speedup)}, {counted(len(seen.pairs), 'pair')}: this figure is published",
        level=percent(1 / speedup.mid_ratio),
        rest=100 * scale.at(1 / speedup.mid_ratio),
        change=0.0,
        whisker=[100 * scale.at(end) for end in ends],
    )


def _strip(seen: Comparison, name: str, spelt: str = "", *, scale: shapes.Scale) -> SimpleNamespace:
    verdict = VERDICTS[seen.verdict]
    if seen.speedup is None:
        detail = f"{spelt}{seen.failure}"
        return SimpleNamespace(name=name, verdict=verdict, figure="", detail=detail)
    places = [(pair.log_ratio, (i + 0.5) / len(seen.pairs)) for i, pair in enumerate(seen.pairs)]
    inside = [(scale.at(x), y) for x, y in places if scale.holds(x)]
    strays = [(scale.at(x), y) for x, y in places if not scale.holds(x)]
    figure, speedup = interval(seen.speedup), seen.speedup
    ends = (speedup.low_ratio, speedup.mid_ratio, speedup.high_ratio)
    detail = f"{spelt}{_detail(seen, stray_count=len(strays))}"
    return SimpleNamespace(
        name=name,
        verdict=verdict,
        figure=figure,
        detail=detail,
        dots=shapes.dots(inside),
        strays=shapes.dots(strays),
        band=tuple(shapes.ratio_at(scale, end) for end in ends) if _tells(speedup) else (),
        message=f"{name}: {verdict}, {figure}; {detail}.",
    )


def _detail(seen: Comparison, *, stray_count: int) -> str:
    ahead_count = sum(pair.log_ratio > 0 for pair in seen.pairs)
    parts = [
        f"{counted(len(seen.pairs), 'pair')} in {duration(seen.wall_s)}, faster in {ahead_count}"
    ]
    if seen.means_ratio is not None:
        parts.append(f"mean-based speedup {times(seen.means_ratio)}")
    if stray_count:
        parts.append(f"{stray_count} outside of the picture")
    return ", ".join(parts)


# ---- the way of a search: which races led from the script as it is to its last plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A race after which the search continued from a different plan.

    The plan `after` it lacks any levers that were found not to be needed; `time_ratio` is the time
    of a step after over before.
    """

    seen: Comparison
    before: Plan
    after: Plan
    time_ratio: float


def moves(races: Sequence[Comparison], final: Plan) -> list[Move]:
    """Return the races that changed the plan, in order.

    A journal records races, not decisions: which plan the search had shows in the next race,
    one side of which is always that plan. It may lack levers that turned out to do nothing
    beside a newly added one.
    """
    plan, found = Plan(), []
    for seen, following in zip_longest(races, races[1:]):
        if seen.speedup is None or plan not in (seen.baseline, seen.candidate):
            continue
        other = seen.candidate if seen.baseline == plan else seen.baseline
        sides = (following.baseline, following.candidate) if following else (final,)
        after = next((side for side in sides if _is_of(side, plan, other)), None)
        if after is None and following is None and final != plan:
            after = other if _is_better(seen) == (other == seen.candidate) else None
        if after is not None:
            gain = seen.speedup.mid_ratio
            ratio = 1.0 / gain if other == seen.candidate else gain
            found.append(Move(seen=seen, before=plan, after=after, time_ratio=ratio))
            plan = after
    return found


def _is_of(side: Plan, plan: Plan, other: Plan) -> bool:
    """Return whether a plan is `other`, or a part of it with everything that was added."""
    came = set(other.settings) - set(plan.settings)
    return side == other or bool(came and came <= set(side.settings) <= set(other.settings))


def _is_better(seen: Comparison) -> bool:
    """Return whether a search takes the candidate: it won, or its estimate is worth taking."""
    if seen.verdict is not Verdict.UNDECIDED or seen.speedup is None:
        return seen.verdict is Verdict.WIN
    return seen.speedup.mid_ratio >= 1.0 + LEAST_RATIO
