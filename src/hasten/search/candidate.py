"""What the search may try, and which candidates are not worth a trial."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import exp, inf, log
from typing import TYPE_CHECKING

from hasten.records import Effect, LeverReport, Outcome, Phase, Scope, Setting
from hasten.units import percent, times

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from hasten.records import Plan, Profile
    from hasten.search.priors import Prior

SCOPES = tuple(Scope)  # cheapest first
_ALIKE_RATIO = 0.005

# The assumption where there is no record: a lever that its own file calls promising helps on one
# script in two, any other on one in five, by about a third of its bound. A record of three scripts
# or more outweighs this.
_WEAK_COUNT = 2
_WEAK_CHANCE = {True: 0.5, False: 0.2}
_WEAK_SHARE = 0.3
_FORECAST_CHANCE = 0.7
# What a finding has measured can be won back; at best, a lever wins all of it.
_NAMED_CHANCE, _NAMED_AT_MOST = 0.5, 0.98
_FASTER_AT_MOST = 8.0  # how many times faster other levers may make a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A lever as the search sees it.

    Attributes:
        lever: its name.
        phases: the phases that it can shorten.
        settings: what to try, best guess first; at least one.
        gain_ratio: how many times faster it may make its phases at best.
        scope: how far a running script can change it.
        effect: the most that it does to the arithmetic.
        bundled: its first setting belongs in the first bundle; False where it is as likely to
            hurt as to help, and has to be tried alone.
        steadies: it makes launches alike, and stays in a plan that it does not slow down.
        redundant_with: why a setting does nothing beside the others of a plan, empty where it does.
        forecasts: the speed-up predicted for a setting alone, where there is a prediction.
        named_ratio: the largest share of a step that a finding says it can take away; 0 for none.
        slower: a setting that slowed the steps down in a closer look, and how many times faster
            they were; None where no setting did.
        prior: what it did to other scripts, None where nobody has kept a record.
        phases_ratio: share of its phases in a step of the untouched script, see `bounds`.
    """

    lever: str
    phases: frozenset[Phase]
    settings: tuple[Setting, ...]
    gain_ratio: float
    scope: Scope
    effect: Effect
    bundled: bool = True
    steadies: bool = False
    forecasts: Mapping[Setting, float] = field(default_factory=dict)
    redundant_with: Callable[[Setting, Plan], str] = lambda setting, plan: ""
    named_ratio: float = 0.0
    slower: tuple[Setting, float] | None = None
    prior: Prior | None = None
    phases_ratio: float = 1.0

    @property
    def share_ratio(self) -> float:
        """The share of a step of the untouched script that it can touch.

        Work in its phases can slow down others: loader workers take CPUs from the loop. A finding
        that measured more than the phases themselves says so.
        """
        return max(self.phases_ratio, self.named_ratio)

    def __post_init__(self) -> None:
        if not self.settings:
            raise ValueError(f"{self.lever} has no setting to try: leave it out")

    def limit_log(self, share_ratio: float | None = None) -> float:
        """Return the log of the most that it can speed up the whole step, by Amdahl's law.

        Source: Amdahl, AFIPS 1967, https://doi.org/10.1145/1465482.1465560.

        Args:
            share_ratio: share of its phases in a step, that of the untouched script by default.
        """
        share_ratio = self.share_ratio if share_ratio is None else share_ratio
        return -log(max(1e-9, 1.0 - share_ratio * (1.0 - 1.0 / self.gain_ratio)))

    @property
    def chance_ratio(self) -> float:
        """How often it helps when tried, by its record and its own claim."""
        weak = _WEAK_COUNT * _WEAK_CHANCE[self.bundled]
        if self.prior is None:
            return weak / _WEAK_COUNT
        return (self.prior.helped_count + weak) / (self.prior.script_count + _WEAK_COUNT)

    def expected_log(self, setting: Setting, share_ratio: float | None = None) -> float:
        """Return the log of the speed-up that a trial of a setting gives on average.

        A trial that does not help costs nothing but its time: the plan stays as it was. The share
        of its phases in a step is that of the untouched script by default.
        """
        share_ratio = self.share_ratio if share_ratio is None else share_ratio
        named_ratio = min(self.named_ratio, share_ratio, _NAMED_AT_MOST)
        named_log = -_NAMED_CHANCE * log(1.0 - named_ratio)
        return max(named_log, self._unnamed_log(setting, share_ratio))

    def _unnamed_log(self, setting: Setting, share_ratio: float) -> float:
        limit_log = self.limit_log(share_ratio)
        if setting in self.forecasts:
            said_log = log(max(1.0, self.forecasts[setting]))
            return _FORECAST_CHANCE * min(limit_log, said_log)
        weak_log = _WEAK_SHARE * limit_log
        if self.prior is None:
            return self.chance_ratio * weak_log
        weight = self.prior.weight_count
        seen_log = self.prior.gain_log(share_ratio)
        mean_log = (weight * seen_log + _WEAK_COUNT * weak_log) / (weight + _WEAK_COUNT)
        return self.chance_ratio * min(limit_log, mean_log)


def bounds(
    candidates: Sequence[Candidate],
    profile: Profile,
    *,
    least_ratio: float,
    begun: Collection[str] = frozenset(),
) -> tuple[tuple[Candidate, ...], tuple[LeverReport, ...]]:
    """Return the candidates that can reach the least gain, best first, and rows for the others.

    Candidates of about the same promise are ordered by how cheaply they are switched. A small
    share now is a larger one once other levers have made the step faster. So where any candidate
    is left, those that may come to matter are kept, too, until such a step has been seen.

    Args:
        candidates: every candidate that is permitted here.
        profile: of the untouched script.
        least_ratio: the gain that is worth a lever (0.02 is 2%).
        begun: levers that an earlier start of this search found worth a trial.
    """
    placed = [
        replace(candidate, phases_ratio=profile.share_ratio(*candidate.phases))
        for candidate in candidates
    ]
    least_log = log(1.0 + least_ratio)
    awake = [
        candidate
        for candidate in placed
        if candidate.limit_log() >= least_log or candidate.lever in begun
    ]
    waking_log = least_log / _FASTER_AT_MOST if awake else inf
    kept = [
        candidate
        for candidate in placed
        if candidate.limit_log() >= waking_log or candidate in awake
    ]
    skipped = [candidate for candidate in placed if candidate not in kept]
    kept.sort(key=lambda candidate: (-_promise(candidate), SCOPES.index(candidate.scope)))
    return tuple(kept), tuple(_skip(candidate) for candidate in skipped)


def _promise(candidate: Candidate) -> int:
    return round(candidate.expected_log(candidate.settings[0]) / _ALIKE_RATIO)


def at_most(candidate: Candidate, share_ratio: float | None = None) -> str:
    """Return the bound of a candidate in words: what it can touch, and what that can give."""
    if share_ratio is None:
        share_ratio = candidate.share_ratio
    names = " and ".join(phase.value for phase in Phase if phase in candidate.phases) or "nothing"
    limit = times(exp(candidate.limit_log(share_ratio)))
    return f"can only touch {names}, {percent(share_ratio)} of the step: at most {limit}"


def _skip(candidate: Candidate) -> LeverReport:
    return LeverReport(
        lever=candidate.lever,
        setting=None,
        outcome=Outcome.SKIPPED,
        why=at_most(candidate),
        effect=candidate.effect,
    )
