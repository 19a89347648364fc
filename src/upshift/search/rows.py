"""What the search found about each lever, in one honest sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from upshift.records import Comparison, LeverReport, Setting, Verdict
from upshift.search.propose import LEAST_RATIO, retell
from upshift.units import times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from upshift.search.knob import Knob
    from upshift.search.story import Story

_SAYS_NOTHING_RATIO = 1000.0


def rows(
    knobs: Sequence[Knob], history: Sequence[Comparison], *, least_ratio: float = LEAST_RATIO
) -> tuple[LeverReport, ...]:
    """Return one row per knob: kept, dropped, failed, or skipped where nobody tried it."""
    story = retell(knobs, history, least_ratio=least_ratio)
    return tuple(_row(knob, story) for knob in knobs)


def _row(knob: Knob, story: Story) -> LeverReport:
    setting = dict(story.plan.settings).get(knob.lever)
    seen = story.deciding.get(knob.lever)
    if knob.lever in story.broken:
        failed = story.broken[knob.lever]
        return _report(knob, dict(failed.candidate.settings)[knob.lever], "failed", _broke(failed))
    if setting is not None and seen is None:
        together = figure(story.bundle) if story.bundle else "not measured"
        why = f"pulled together with other levers ({together}); not measured alone"
        return _report(knob, setting, "kept", why)
    if seen is None:
        return _report(knob, None, "skipped", _untried(knob, story))
    if setting is not None:
        return _report(knob, setting, "kept", f"{_kept(seen)}{_expected(knob, seen)}", seen)
    tried = dict(seen.candidate.settings)[knob.lever]
    why = f"{figure(seen)}: {_dropped(seen)}{_expected(knob, seen)}"
    return _report(knob, tried, "dropped", why, seen)


def _untried(knob: Knob, story: Story) -> str:
    together = story.together
    if together is None or knob.lever not in dict(together.candidate.settings):
        return "not tried: the search ended before its turn"
    with_others = f"{figure(together)} together with other levers"
    return f"not tried alone: the search ended before its turn ({with_others})"


def _report(
    knob: Knob, setting: Setting | None, outcome: str, why: str, seen: Comparison | None = None
) -> LeverReport:
    return LeverReport(
        lever=knob.lever,
        setting=setting,
        outcome=outcome,
        why=why,
        effect=knob.effect,
        speedup=seen.speedup if seen else None,
    )


def _expected(knob: Knob, seen: Comparison) -> str:
    """Say what was predicted, where both figures are about the lever alone."""
    ratio = knob.forecasts.get(dict(seen.candidate.settings)[knob.lever])
    if ratio is None or seen.baseline.settings:
        return ""
    return f"; predicted {times(ratio)}"


def figure(seen: Comparison) -> str:
    """Return a comparison as `1.02x [0.99, 1.05] after 40 pairs`."""
    speedup = seen.speedup
    if speedup is None:
        return "no pairs"
    says = speedup.high_ratio / speedup.low_ratio < _SAYS_NOTHING_RATIO
    ends = f" [{speedup.low_ratio:.2f}, {speedup.high_ratio:.2f}]" if says else ""
    count = len(seen.pairs)
    return f"{times(speedup.mid_ratio)}{ends} after {count} pair{'s' if count != 1 else ''}"


def _kept(seen: Comparison) -> str:
    if seen.verdict is Verdict.WIN:
        return figure(seen)
    return f"{figure(seen)}: the best guess, not proven alone"


def _dropped(seen: Comparison) -> str:
    speedup = seen.speedup
    if speedup is not None and speedup.high_ratio < 1.0:
        return "slower here"
    if seen.verdict is Verdict.DROP:
        return "no gain worth a lever here"
    return "no gain that can be told from noise here"


def _broke(failed: Comparison) -> str:
    first = failed.failure.strip().splitlines()[0]
    levers = len(failed.candidate.settings)
    return first if levers == 1 else f"{first} (with {levers - 1} other levers pulled)"
