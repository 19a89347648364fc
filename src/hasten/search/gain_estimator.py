"""What each candidate may be expected to give on top of the incumbent."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations, product
from math import log1p
from typing import TYPE_CHECKING

from hasten.records import Comparison, Phase, Plan, Scope, Setting
from hasten.search.candidate import SCOPES, Candidate, at_most

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_LOSS_RATIO = 0.98
# The share of the expectation that is left for another try around another plan: after a first
# try without a gain, after a loss, and after a bundle that disappointed.
_AGAIN_RATIO, _LOST_RATIO, _DISAPPOINTED_RATIO = 0.3, 0.1, 0.5
_MOVE_RATIO = 0.3
_SCOPE_COSTS = (1.0, 1.25, 2.5)  # of a race, in the order of the switches


@dataclass(kw_only=True)
class GainEstimator:
    """The ledger of the incumbent, and what toggles have shown so far.

    Attributes:
        least_ratio: the gain that is worth a lever.
        step_s: mean seconds of a step of the incumbent in each phase of it; empty until seen.
        disappointed: candidates of a bundle that gave nothing.
    """

    least_ratio: float
    step_s: Mapping[Phase, float] = field(default_factory=dict)
    disappointed: set[str] = field(default_factory=set)
    _toggled: dict[tuple[str, Setting], tuple[float, Plan]] = field(default_factory=dict)

    def look(self, seen: Comparison, plan: Plan) -> None:
        """Take the phase times of the incumbent, one of the two plans of a race."""
        found = seen.phase_s if plan == seen.candidate else seen.baseline_phase_s
        if found:
            self.step_s = {Phase(p): s for p, s in found.items() if Phase(p).in_step}

    def toggle(self, candidate: Candidate, setting: Setting, seen: Comparison) -> None:
        """Note what a candidate showed, and around which plan."""
        if seen.speedup is not None:
            self._toggled[candidate.lever, setting] = seen.speedup.mid_ratio, seen.baseline

    def share_ratio(self, candidate: Candidate) -> float:
        """Return the share of a step as it is now that a candidate can touch.

        What its phases take from others shrinks with them.
        """
        whole_s = sum(self.step_s.values())
        own_s = sum(self.step_s.get(phase, 0.0) for phase in candidate.phases)
        if not whole_s or not candidate.phases_ratio:
            return candidate.share_ratio
        return min(1.0, own_s / whole_s * candidate.share_ratio / candidate.phases_ratio)

    def named_ratio(self, candidate: Candidate) -> float:
        """Return the share that findings name, at most what the candidate's phases still take."""
        return min(candidate.named_ratio, self.share_ratio(candidate))

    def is_bounded(self, candidate: Candidate) -> bool:
        """Return whether neither the untouched step nor the present one leaves it enough.

        One alone is not enough: where workers and the loop share the cores, work that the workers
        no longer do speeds up other phases.
        """
        limit_log = max(candidate.limit_log(), candidate.limit_log(self.share_ratio(candidate)))
        return limit_log < log1p(self.least_ratio)

    def pointless(self, candidate: Candidate, setting: Setting, plan: Plan) -> str:
        """Say why a setting is not worth a trial around a plan; empty where it is."""
        bounded = (
            at_most(candidate, self.share_ratio(candidate)) if self.is_bounded(candidate) else ""
        )
        return candidate.redundant_with(setting, plan) or bounded

    def expected_log(self, candidate: Candidate, setting: Setting) -> float:
        """Return the log of the speed-up that a trial gives on average, by all that is known."""
        expected = candidate.expected_log(setting, self.share_ratio(candidate))
        if candidate.lever in self.disappointed:
            expected *= _DISAPPOINTED_RATIO
        if self.is_slower(candidate, setting):
            return expected * _LOST_RATIO
        tried = any(self.seen_ratio(candidate, one) for one in candidate.settings)
        return expected * (_AGAIN_RATIO if tried else 1.0)

    def move_log(self, candidate: Candidate) -> float:
        """Return the expected log speed-up of moving a candidate that is in to another setting."""
        return _MOVE_RATIO * candidate.expected_log(
            candidate.settings[0], self.share_ratio(candidate)
        )

    def worth(self, candidate: Candidate, expected_log: float) -> float:
        """Return the expected gain of a trial over the cost of its scope."""
        return expected_log / _SCOPE_COSTS[SCOPES.index(candidate.scope)]

    def seen_ratio(self, candidate: Candidate, setting: Setting) -> float:
        """Return the last speed-up of a toggled setting, 0 where it was never toggled."""
        return self._toggled.get((candidate.lever, setting), (0.0, None))[0]

    def best_seen(self, candidate: Candidate) -> Setting:
        """Return the setting that showed the largest speed-up when toggled."""
        return max(candidate.settings, key=lambda setting: self.seen_ratio(candidate, setting))

    def is_slower(self, candidate: Candidate, setting: Setting) -> bool:
        """Return whether a setting's toggle, or else the closer look, showed a loss."""
        shown = self._shown(candidate, setting)
        return shown is not None and shown[0] < _LOSS_RATIO

    def is_stale(self, candidate: Candidate, setting: Setting) -> bool:
        """Return whether a setting that needs fresh launches has had its try."""
        return candidate.scope is Scope.LAUNCH and bool(self.seen_ratio(candidate, setting))

    def is_elsewhere(self, candidate: Candidate, setting: Setting, plan: Plan) -> bool:
        """Return whether a setting showed what it does around another plan than this one."""
        shown = self._shown(candidate, setting)
        return shown is not None and shown[1] != plan

    def _shown(self, candidate: Candidate, setting: Setting) -> tuple[float, Plan] | None:
        """Return the speed-up that a toggle or the closer look showed, and around which plan."""
        looked_at = None
        if candidate.slower is not None and candidate.slower[0] == setting:
            looked_at = candidate.slower[1], Plan()
        return self._toggled.get((candidate.lever, setting), looked_at)


def best_guess(candidates: Sequence[Candidate]) -> Plan:
    """Return the plan of every candidate at its first setting."""
    return Plan(tuple(sorted((candidate.lever, candidate.settings[0]) for candidate in candidates)))


def number_pairs(
    candidates: Sequence[Candidate], estimator: GainEstimator, plan: Plan
) -> Iterator[tuple[Candidate, Candidate, tuple[Setting, Setting]]]:
    """Yield pairs of numeric candidates with settings near a plan's: they may share the cores."""
    now = dict(plan.settings)
    numeric = [k for k in candidates if is_numeric(k) and len(k.settings) > 1]
    numeric = [k for k in numeric if k.lever in now or not estimator.is_bounded(k)]
    for one, other in combinations(numeric, 2):
        near = (neighbours(one, now.get(one.lever)), neighbours(other, now.get(other.lever)))
        for settings in product(*near):
            yield one, other, settings


def is_numeric(candidate: Candidate) -> bool:
    """Return whether a candidate's settings have an order."""
    return all(isinstance(s, int | float) and not isinstance(s, bool) for s in candidate.settings)


def neighbours(candidate: Candidate, now: Setting | None) -> Sequence[Setting]:
    """Return the settings next to the current one; the first two guesses where there is none."""
    if now is None:
        return candidate.settings[:2]
    ladder = sorted(candidate.settings)
    place = ladder.index(now)
    return [*ladder[max(0, place - 1) : place], *ladder[place + 1 : place + 2]]
