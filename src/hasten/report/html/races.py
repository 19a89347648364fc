"""The pairs behind each verdict."""

from __future__ import annotations

from math import log
from types import SimpleNamespace
from typing import TYPE_CHECKING

from hasten.records import Verdict
from hasten.report.html import shapes
from hasten.report.wording import interval
from hasten.units import counted, duration, times

if TYPE_CHECKING:
    from hasten.records import Comparison, Tuning


VERDICTS = {
    Verdict.WIN: "faster",
    Verdict.DROP: "no gain",
    Verdict.UNDECIDED: "undecided",
    Verdict.FAIL: "failed",
}

_NAMED_COUNT = 2


def strips(tuning: Tuning) -> SimpleNamespace | None:
    """Return the pairs of every comparison on one axis; None if nothing was compared."""
    fresh = [tuning.confirmed] if tuning.confirmed else []
    known = [*fresh, *tuning.races]
    if not any(seen.pairs for seen in known):
        return None
    logs = [pair.log_ratio for seen in known for pair in seen.pairs]
    sure = [seen.speedup for seen in known if seen.speedup and not seen.speedup.says_nothing]
    ends = [log(ratio) for one in sure for ratio in (one.low_ratio, one.high_ratio)]
    scale = shapes.ratio_span(logs, always=ends)
    return SimpleNamespace(
        fresh=[_strip(seen, "the plan, on fresh launches", scale=scale) for seen in fresh],
        races=[_strip(seen, *change(seen), scale=scale) for seen in tuning.races],
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
        band=() if speedup.says_nothing else [shapes.ratio_at(scale, end) for end in ends],
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
