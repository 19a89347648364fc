"""What the search may turn, and which knobs are not worth a turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from upshift.records import Effect, LeverReport, Phase, Setting, Switch
from upshift.units import percent, times

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from upshift.records import Profile

SWITCHES = tuple(Switch)  # cheapest first
_ALIKE_RATIO = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A lever as the search sees it.

    Attributes:
        lever: its name.
        phases: the phases that it can shorten.
        settings: what to try, best guess first; at least one.
        gain_ratio: how many times faster it may make its phases at best.
        switch: how far a running script can change it.
        effect: the most that it does to the arithmetic.
        bundled: its first setting belongs into the first bundle; False where it is as likely to
            hurt as to help, and has to be tried alone.
        forecasts: the speed-up that is expected of settings alone, where something says.
    """

    lever: str
    phases: frozenset[Phase]
    settings: tuple[Setting, ...]
    gain_ratio: float
    switch: Switch
    effect: Effect
    bundled: bool = True
    forecasts: Mapping[Setting, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.settings:
            raise ValueError(f"{self.lever} has no setting to try: leave it out")


def bound_ratio(knob: Knob, profile: Profile) -> float:
    """Return the most that a knob can speed up the whole step, by Amdahl's law.

    Source: Amdahl, AFIPS 1967, https://doi.org/10.1145/1465482.1465560.
    """
    kept = 1.0 - profile.share_ratio(*knob.phases) * (1.0 - 1.0 / knob.gain_ratio)
    return 1.0 / max(kept, 1e-9)


def bounds(
    knobs: Sequence[Knob],
    profile: Profile,
    *,
    least_ratio: float,
    begun: Collection[str] = frozenset(),
) -> tuple[tuple[Knob, ...], tuple[LeverReport, ...]]:
    """Return the knobs that can reach the least gain, most promising first, and the others' rows.

    Knobs of about the same promise are ordered by how cheaply they are switched.

    Args:
        knobs: every knob that is permitted here.
        profile: of the untouched script.
        least_ratio: the gain that is worth a lever (0.02 is 2 %).
        begun: levers that an earlier start of this search found worth a trial.
    """
    limits = {knob.lever: bound_ratio(knob, profile) for knob in knobs}
    least = 1.0 + least_ratio
    kept = [knob for knob in knobs if limits[knob.lever] >= least or knob.lever in begun]
    skipped = [knob for knob in knobs if knob not in kept]
    kept.sort(
        key=lambda knob: (
            -round(min(limits[knob.lever], 1e6) / _ALIKE_RATIO),
            SWITCHES.index(knob.switch),
        )
    )
    return tuple(kept), tuple(_skip(knob, profile, limits[knob.lever]) for knob in skipped)


def _skip(knob: Knob, profile: Profile, limit_ratio: float) -> LeverReport:
    names = " and ".join(phase.value for phase in Phase if phase in knob.phases) or "nothing"
    share = percent(profile.share_ratio(*knob.phases))
    return LeverReport(
        lever=knob.lever,
        setting=None,
        outcome="skipped",
        why=f"can only touch {names}, {share} of the step: at most {times(limit_ratio)}",
        effect=knob.effect,
    )
