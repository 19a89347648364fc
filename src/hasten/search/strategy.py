"""The search: it asks for races and goes on with their answers.

The search is a generator over its own history. `propose` replays it from the start each time and
hands out the first race that nobody has run yet; so it depends on nothing but the candidates and
the comparisons, and a journal of comparisons is all the state there is.

The levers that findings name come first (`race_named`), then a bundle, then one at a time:
performance levers interact through the bottleneck, so what a lever does alone at the baseline says
little (a compute lever shows nothing while the data loader is late), while most interactions are
synergistic. So levers that do nothing alone are tried once more together, and numeric ones, which
may share the cores, in pairs; rivals for one phase also replace each other (`instead`). A bundle
that hurts is tried in halves: one bad lever hides what the others give. What comes next
is whatever may be expected to give most, by the phase times of the incumbent. Each round
takes the next guess of the candidates that are still out; the second is for what the first one
uncovered. Sources: Frey, Engelhardt and Greitzer 2003, https://doi.org/10.1007/s00163-002-0026-9
(adaptive one-factor-at-a-time); Zeller and Hildebrandt 2002, https://doi.org/10.1109/32.988498
(delta debugging).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from math import exp, inf, log, log1p
from typing import TYPE_CHECKING, TypeAlias

from hasten.records import LEAST_RATIO, Comparison, Plan, Scope, Setting, Verdict
from hasten.search.candidate import SCOPES
from hasten.search.gain_estimator import GainEstimator, best_guess, is_numeric, number_pairs
from hasten.search.proposal import (
    LAUNCHES_LOG,
    Kind,
    Proposal,
    has_won,
    is_better,
    is_hidden,
    is_slower,
    is_taken_whole,
    is_unpaid,
    propose_race,
    shown_ratio,
    without_guesses,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from hasten.search.budget_limits import Refusal
    from hasten.search.candidate import Candidate
    from hasten.search.proposal import AcceptanceCriteria


# Yield a race, receive its comparison, or None where it may not be run; `Asked` returns it.
Steps: TypeAlias = "Generator[Proposal, Comparison | None, None]"
Asked: TypeAlias = "Generator[Proposal, Comparison | None, Comparison | None]"
_MOST_BUNDLES, _MOST_ROUNDS, _MOST_PASSES = 3, 3, 3
_MOST_REFINEMENTS, _MOST_PAIRS = 4, 8
_GROUP_COUNT = 4
_PROMISING_RATIO, _HURTS_RATIO = 0.35, 0.99


@dataclass(kw_only=True)
class SearchStrategy:
    """Where a search stands.

    Attributes:
        candidates: most promising first.
        criteria: when a lever is taken.
        plan: the incumbent.
        estimator: what may be expected of the candidates around it.
        bundle: the comparison by which the incumbent's first candidates came in, None without one.
        together: the last race of a bundle, whatever came of it.
        deciding: for each candidate the comparison that decided about it.
        broken: for each quarantined candidate the comparison that failed.
        pruned: candidates that have been raced against their absence.
        refused: races that were passed over, in order.
        doubted: the second race, for each candidate that did not win it.
        moved: for each candidate that changed its setting, the last race that changed it.
        bounded: candidates with too little left to do beside the incumbent, with the reason.
        replaced: for each candidate that another one replaced, the race in which it did.
        redundant: for each candidate made redundant by what a race brought in, that race
            and why.
        steadied: candidates that stay because they may make launches alike.
    """

    candidates: Sequence[Candidate]
    criteria: AcceptanceCriteria
    plan: Plan = field(default_factory=Plan)
    bundle: Comparison | None = None
    together: Comparison | None = None
    deciding: dict[str, Comparison] = field(default_factory=dict)
    broken: dict[str, Comparison] = field(default_factory=dict)
    pruned: set[str] = field(default_factory=set)
    refused: list[Refusal] = field(default_factory=list)
    doubted: dict[str, Comparison] = field(default_factory=dict)
    moved: dict[str, Comparison] = field(default_factory=dict)
    bounded: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, Comparison] = field(default_factory=dict)
    redundant: dict[str, tuple[Comparison, str]] = field(default_factory=dict)
    steadied: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # Where noise hides small gains, it takes a larger one to come in, but only 2% to stay.
        least_ratio = min(self.criteria.least_ratio, LEAST_RATIO)
        self._to_stay = replace(self.criteria, least_ratio=least_ratio)
        self.estimator = GainEstimator(least_ratio=least_ratio)

    def races(self) -> Steps:
        """Run the whole search, in at most three rounds, until one changes nothing."""
        yield from race_named(self)
        yield from self._bundle()
        yield from self._prune(cheap=True)
        for guess_index in range(_MOST_ROUNDS):
            before = self.plan
            yield from self._toggle(guess_index)
            yield from self._join()
            yield from self._refine()
            yield from self._pair()
            yield from self._prune()
            if guess_index and self.plan == before:
                break
        yield from race_guesses(self)
        yield from race_hidden(self)
        yield from doubt(self)
        self._steady()

    # ---- races

    def race(
        self,
        kind: Kind,
        baseline: Plan,
        candidate: Plan,
        *,
        lever: str | None = None,
        expected_log: float = 0.0,
    ) -> Asked:
        """Ask for a race; None where it may not be run."""
        came = [k for k in self.candidates if k.lever in candidate.levers - self.plan.levers]
        asked = propose_race(
            kind, baseline, candidate, self.candidates, lever=lever,
            expected_ratio=exp(expected_log),
            named_ratio=max(map(self.estimator.named_ratio, came), default=0.0),
        )  # fmt: skip
        return (yield asked)

    def take(self, seen: Comparison) -> None:
        """Make the candidate of a race the incumbent, and reopen the rivals of what came in."""
        came = seen.baseline.differing(seen.candidate)
        self.pruned -= {
            k.lever
            for candidate in self.candidates
            if candidate.lever in came
            for k in rivals(candidate, self.candidates)
        }
        self.plan = seen.candidate
        self.estimator.look(seen, self.plan)
        for candidate in self.candidates:
            if self.is_in(candidate):
                self._leave_redundant(candidate, seen)

    def _leave_redundant(self, candidate: Candidate, seen: Comparison) -> None:
        """Drop a candidate that is redundant beside what a race brought in."""
        without = self.plan.without(candidate.lever)
        setting = dict(self.plan.settings)[candidate.lever]
        if why := candidate.redundant_with(setting, without):
            self.plan = without
            self.deciding.pop(candidate.lever, None)
            self.redundant[candidate.lever] = seen, why

    def whole_ratio(self, seen: Comparison) -> float:
        """Return the speed-up of the whole training that a race shows."""
        return seen.whole_ratio(self.criteria.pass_count)

    def usable(self) -> list[Candidate]:
        """Return the candidates that have broken nothing."""
        return [candidate for candidate in self.candidates if candidate.lever not in self.broken]

    def _is_promising(self, candidate: Candidate) -> bool:
        known = (
            self.is_in(candidate)
            or candidate.lever in self.deciding
            or self.estimator.is_bounded(candidate)
            or self.estimator.is_slower(candidate, candidate.settings[0])
        )
        return candidate.bundled and candidate.chance_ratio >= _PROMISING_RATIO and not known

    def is_in(self, candidate: Candidate) -> bool:
        """Return whether a candidate is part of the incumbent."""
        return candidate.lever in self.plan.levers

    # ---- several candidates at once

    def _bundle(self) -> Steps:
        for _ in range(_MOST_BUNDLES):
            usable = [candidate for candidate in self.usable() if self._is_promising(candidate)]
            if len(usable) < 2:
                return
            seen = yield from self.race_bundle(usable)
            if seen is None:
                usable = [candidate for candidate in usable if candidate.scope is not Scope.LAUNCH]
                if len(usable) < 2:
                    return
                seen = yield from self.race_bundle(usable)
            self.together = seen
            if seen is None:
                return
            if seen.verdict is not Verdict.FAIL:
                yield from self._read_bundle(seen)
                return
            suspects = [k for k in usable if k.lever in seen.candidate.levers]
            yield from self._bisect(suspects, seen)

    def race_bundle(self, candidates: Sequence[Candidate]) -> Asked:
        """Race some candidates together, each at its best guess."""
        plan = self.plan.merged(best_guess(candidates))
        expected_log = sum(self.estimator.expected_log(k, k.settings[0]) for k in candidates)
        return (yield from self.race(Kind.BUNDLE, self.plan, plan, expected_log=expected_log))

    def _read_bundle(self, seen: Comparison) -> Steps:
        if is_taken_whole(seen, self.criteria):
            self.take(seen)
            self.bundle = seen
            return
        names = seen.candidate.levers
        self.estimator.disappointed |= names
        candidates = [candidate for candidate in self.usable() if candidate.lever in names]
        hurts = seen.speedup is not None and seen.speedup.mid_ratio < _HURTS_RATIO
        if len(candidates) < _GROUP_COUNT or not hurts:
            return
        for half in (candidates[: len(candidates) // 2], candidates[len(candidates) // 2 :]):
            part = yield from self.race_bundle(half)
            if part is not None and is_taken_whole(part, self.criteria):
                self.take(part)
                self.bundle = part

    def _bisect(self, suspects: list[Candidate], failed: Comparison) -> Steps:
        """Quarantine one candidate without which the failed bundle works.

        Invariant: `sound` runs, `sound + suspects` fails. So an interaction is found as well.
        """
        sound: list[Candidate] = []
        while len(suspects) > 1:
            half, rest = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
            part = self.plan.merged(best_guess([*sound, *half]))
            seen = yield from self.race(Kind.BISECT, self.plan, part)
            if seen is None:
                return
            if seen.verdict is Verdict.FAIL:
                suspects, failed = half, seen
            else:
                sound, suspects = [*sound, *half], rest
        self.broken[suspects[0].lever] = failed

    def _join(self) -> Steps:
        """Try all candidates that do nothing alone together: each may hide another's gain."""
        plan, expected_log = self.plan, 0.0
        for candidate in self.usable():
            setting = self.estimator.best_seen(candidate)
            seen = self.deciding.get(candidate.lever)
            is_out = seen is not None and is_unpaid(seen, self.criteria)
            if is_out or self.estimator.pointless(candidate, setting, self.plan):
                continue
            if not self.is_in(candidate) and not self.estimator.is_slower(candidate, setting):
                plan = plan.with_lever(candidate.lever, setting)
                expected_log += self.estimator.expected_log(candidate, setting)
        if len(self.plan.differing(plan)) < 2:
            return
        seen = yield from self.race(Kind.BUNDLE, self.plan, plan, expected_log=expected_log)
        if seen is not None and has_won(seen) and is_better(seen, self.criteria):
            for lever in self.plan.differing(plan):
                self.deciding.pop(lever, None)
                self.pruned.discard(lever)
            self.take(seen)
            self.bundle = seen

    # ---- one candidate at a time

    def _toggle(self, guess_index: int) -> Steps:
        """Try each candidate that is out, repeatedly while others come in: the bottleneck moves.

        A later round tries a later guess first, then the first one on top of what is in by now.
        """
        for pass_index in range(_MOST_PASSES):
            before, done = self.plan, set[str]()
            again = bool(guess_index and not pass_index)
            index = guess_index if not pass_index else 0
            while (found := self._next(index, done, again=again)) is not None:
                done.add(found[0].lever)
                yield from self.attempt(*found)
            if self.plan in (before, Plan()) and (pass_index or not guess_index):
                return

    def _next(
        self, guess_index: int, done: set[str], *, again: bool
    ) -> tuple[Candidate, Setting, float] | None:
        """Return the most promising candidate that is out, its setting and its expected gain."""
        found: tuple[Candidate, Setting, float] | None = None
        most = -inf
        for candidate in self.usable():
            setting = candidate.settings[min(guess_index, len(candidate.settings) - 1)]
            if candidate.lever in done or not self._is_open(candidate, setting, again=again):
                continue
            if why := self.estimator.pointless(candidate, setting, self.plan):
                self.bounded[candidate.lever] = why
                continue
            expected_log = self.estimator.expected_log(candidate, setting)
            worth = self.estimator.worth(candidate, expected_log)
            if worth > most:
                found, most = (candidate, setting, expected_log), worth
        return found

    def _is_open(self, candidate: Candidate, setting: Setting, *, again: bool) -> bool:
        """Return whether a toggle is due; `again` repeats one raced around another plan."""
        if self.is_in(candidate):
            return False
        if again and self.estimator.is_elsewhere(candidate, setting, self.plan):
            return True
        return not (
            self.estimator.is_slower(candidate, setting)
            or self.estimator.is_stale(candidate, setting)
        )

    def attempt(self, candidate: Candidate, setting: Setting, expected_log: float) -> Steps:
        """Race the incumbent against itself plus one candidate."""
        plan = self.plan.with_lever(candidate.lever, setting)
        seen = yield from self.race(
            Kind.TOGGLE, self.plan, plan, lever=candidate.lever, expected_log=expected_log
        )
        if seen is None:
            return
        if seen.verdict is Verdict.FAIL:
            self.broken[candidate.lever] = seen
            return
        self.deciding[candidate.lever] = seen
        is_first = not any(self.estimator.seen_ratio(candidate, one) for one in candidate.settings)
        self.estimator.toggle(candidate, setting, seen)
        if is_better(seen, self.criteria):
            self.take(seen)
        elif is_first:
            yield from instead(self, candidate, setting)

    def _refine(self) -> Steps:
        for candidate in self.candidates:
            if self.is_in(candidate) and len(candidate.settings) > 1:
                if is_numeric(candidate):
                    yield from self._climb(candidate)
                else:
                    for setting in candidate.settings[: 1 + _MOST_REFINEMENTS]:
                        yield from self._move(candidate, setting)

    def _climb(self, candidate: Candidate) -> Steps:
        """Walk to a better neighbour in numeric order, up first, while it gets better."""
        ladder = sorted(candidate.settings)
        start = ladder.index(dict(self.plan.settings)[candidate.lever])
        left = _MOST_REFINEMENTS
        for path in (ladder[start + 1 :], ladder[:start][::-1]):
            for setting in path[:left]:
                left -= 1
                moved = yield from self._move(candidate, setting)
                if not moved:
                    break
            if dict(self.plan.settings)[candidate.lever] != ladder[start]:
                return

    def _move(
        self, candidate: Candidate, setting: Setting
    ) -> Generator[Proposal, Comparison | None, bool]:
        plan = self.plan.with_lever(candidate.lever, setting)
        if plan == self.plan or candidate.redundant_with(setting, self.plan):
            return False
        expected_log = self.estimator.move_log(candidate)
        seen = yield from self.race(
            Kind.REFINE, self.plan, plan, lever=candidate.lever, expected_log=expected_log
        )
        if seen is None or not is_better(seen, self.criteria):
            return False
        self.take(seen)
        self.moved[candidate.lever] = seen
        self.deciding.pop(candidate.lever, None)  # that was about another setting
        self.pruned.discard(candidate.lever)
        return True

    # ---- two numbers at once

    def _pair(self) -> Steps:
        """Move two numbers at once: threads and workers compete for the same cores.

        Moving either one alone may lose where moving both gains.
        """
        near = number_pairs(self.usable(), self.estimator, self.plan)
        for one, other, settings in islice(near, _MOST_PAIRS):
            plan = self.plan.with_lever(one.lever, settings[0]).with_lever(other.lever, settings[1])
            if len(self.plan.differing(plan)) < 2:
                continue
            expected_log = max(self.estimator.move_log(one), self.estimator.move_log(other))
            seen = yield from self.race(Kind.PAIR, self.plan, plan, expected_log=expected_log)
            if seen is not None and is_better(seen, self.criteria):
                for lever in (one.lever, other.lever):
                    self.deciding[lever] = seen
                    self.pruned.discard(lever)
                self.take(seen)
                return

    # ---- fewest levers win

    def _prune(self, *, cheap: bool = False) -> Steps:
        """Race the incumbent without some of its levers; if `cheap`, those that need no launch."""
        found = [k for k in self.candidates if self.is_in(k) and not self._is_settled(k.lever)]
        levers = [k.lever for k in reversed(found) if not (cheap and k.scope is Scope.LAUNCH)]
        if len(levers) >= _GROUP_COUNT:
            yield from self._leave_out(levers[: len(levers) // 2])
        for lever in levers:
            if lever in self.plan.levers and not self._is_settled(lever):
                yield from self._leave_out([lever])

    def _steady(self) -> None:
        """Keep levers that may make launches alike beside others, unless a race showed a loss."""
        for candidate in self.usable():
            seen = self.deciding.get(candidate.lever)
            if candidate.lever in self.redundant and seen is None:
                seen = self.redundant[candidate.lever][0]  # what came in may be out again
            if (
                candidate.steadies
                and self.plan.settings
                and not self.is_in(candidate)
                and candidate.lever not in self.doubted
                and seen is not None
                and not is_slower(seen, by_log=LAUNCHES_LOG)
            ):
                setting = dict(seen.candidate.settings)[candidate.lever]
                plan = self.plan.with_lever(candidate.lever, setting)
                if not self._redundant_in(plan):
                    self.plan = plan
                    self.steadied.add(candidate.lever)

    def _redundant_in(self, plan: Plan) -> bool:
        """Return whether any lever of a plan does nothing beside the others."""
        settings = dict(plan.settings)
        return any(
            candidate.redundant_with(settings[candidate.lever], plan.without(candidate.lever))
            for candidate in self.candidates
            if candidate.lever in settings
        )

    def _leave_out(self, levers: Sequence[str]) -> Steps:
        without = self.plan.without(*levers)
        lever = levers[0] if len(levers) == 1 else None
        seen = yield from self.race(Kind.PRUNE, without, self.plan, lever=lever)
        # A failure here is that of the smaller plan: only that one has never run before.
        if seen is None or seen.verdict is Verdict.FAIL:
            return
        needed = is_better(seen, self._to_stay)
        if needed and lever is None:
            return
        for name in levers:
            self.deciding[name] = seen
            self.pruned.add(name)
        if not needed:
            self.plan = without
            self.estimator.look(seen, without)

    def _is_settled(self, lever: str) -> bool:
        """True when it was raced against its absence, or around the very same other settings."""
        seen = self.deciding.get(lever)
        return lever in self.pruned or bool(seen and seen.baseline == self.plan.without(lever))


# ---- what findings name is raced first, the largest share before smaller ones


def race_named(strategy: SearchStrategy) -> Steps:
    """Race the levers that findings name: together where phases differ, then those not in yet."""
    named = [
        candidate
        for candidate in _named(strategy.usable())
        if not strategy.estimator.is_slower(candidate, candidate.settings[0])
    ]
    together = _apart(named)
    if len(together) > 1:
        seen = yield from strategy.race_bundle(together)
        if seen is not None and is_taken_whole(seen, strategy.criteria):
            strategy.take(seen)
            strategy.deciding |= dict.fromkeys((candidate.lever for candidate in together), seen)
    for candidate in named:
        setting = candidate.settings[0]
        is_due = strategy.estimator.named_ratio(candidate) >= strategy.criteria.least_ratio
        if (
            is_due
            and not strategy.is_in(candidate)
            and not candidate.redundant_with(setting, strategy.plan)
        ):
            yield from strategy.attempt(
                candidate, setting, strategy.estimator.expected_log(candidate, setting)
            )


def _named(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the candidates that findings name, largest share first.

    Among equal shares the most promising one comes first, then the one that is cheapest to
    switch.
    """

    def order(candidate: Candidate) -> tuple[float, float, int]:
        promise = candidate.expected_log(candidate.settings[0])
        return -candidate.named_ratio, -promise, SCOPES.index(candidate.scope)

    return sorted((candidate for candidate in candidates if candidate.named_ratio), key=order)


def _apart(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return, in order, those whose phases no earlier one covers: two cures of one ill conflict."""
    found: list[Candidate] = []
    for candidate in candidates:
        if not any(candidate.phases <= other.phases for other in found):
            found.append(candidate)
    return found


# ---- whether what a search ends with is a gain at all

_DOUBTED_RATIO = 1.06


def race_guesses(strategy: SearchStrategy) -> Steps:
    """Race each lever that is only a best guess again, where others have won; it may do nothing.

    It stays if it is faster again by what is worth a lever.
    """
    grounds = grounds_of(strategy)
    if not any(map(has_won, grounds.values())):
        return  # the confirmation decides on a plan of guesses
    for candidate in strategy.candidates:
        first = strategy.deciding.get(candidate.lever)
        if not strategy.is_in(candidate) or candidate.steadies or not first or has_won(first):
            continue
        without = strategy.plan.without(candidate.lever)
        seen = yield from strategy.race(Kind.PRUNE, strategy.plan, without, lever=candidate.lever)
        if seen and strategy.whole_ratio(seen) > 1.0 / (1.0 + LEAST_RATIO):
            strategy.doubted[candidate.lever] = seen
            strategy.plan = without


def grounds_of(strategy: SearchStrategy) -> dict[str, Comparison | None]:
    """Return, for each lever of the incumbent, the race by which it is in."""
    last = {**strategy.moved, **strategy.deciding}
    return {name: last.get(name, strategy.bundle) for name in strategy.plan.levers}


def race_hidden(strategy: SearchStrategy) -> Steps:
    """Where nothing came in, race what noise may have hidden again, the largest figure first.

    What is faster again comes in; the confirmation decides whether it is a gain.
    """
    hidden = [
        (seen.speedup.mid_ratio, candidate.lever, seen)
        for candidate in strategy.usable()
        if (seen := strategy.deciding.get(candidate.lever))
        and is_hidden(seen)
        and seen.speedup
        and not is_unpaid(seen, strategy.criteria)
    ]
    for mid_ratio, lever, first in sorted(hidden, key=lambda one: -one[0]):
        if strategy.plan.settings:
            return
        plan = first.candidate.only(frozenset({lever}))
        seen = yield from strategy.race(
            Kind.PRUNE, plan, Plan(), lever=lever, expected_log=log(mid_ratio)
        )
        if seen and seen.speedup and strategy.whole_ratio(seen) <= 1.0 / (1.0 + LEAST_RATIO):
            strategy.plan = plan


def doubt(strategy: SearchStrategy) -> Steps:
    """Race a small or guessed gain again: of many races, some win by chance.

    A plan that does not win again is reduced to the candidates that have won, then to none.
    """
    while strategy.plan.settings:
        grounds = grounds_of(strategy)
        if shown_ratio(grounds.values()) > _DOUBTED_RATIO:
            return
        seen = yield from strategy.race(Kind.PRUNE, strategy.plan, Plan())
        least = 1.0 + strategy.criteria.least_ratio / 2
        if seen is None or seen.speedup is None or strategy.whole_ratio(seen) <= 1.0 / least:
            return
        left = without_guesses(strategy.plan, grounds)
        strategy.doubted |= dict.fromkeys(strategy.plan.differing(left), seen)
        strategy.plan = left


# ---- what may do better in the place of levers that are in than beside them

_CHANCE_RATIO = 0.2


def rivals(candidate: Candidate, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the other candidates that act on the same single phase as a candidate."""
    if len(candidate.phases) != 1:
        return []
    return [
        other for other in candidates if other.phases == candidate.phases and other is not candidate
    ]


def instead(strategy: SearchStrategy, candidate: Candidate, setting: Setting) -> Steps:
    """Race a candidate that gave nothing beside its rivals once more, in their place."""
    levers = {
        other.lever for other in rivals(candidate, strategy.candidates) if strategy.is_in(other)
    }
    left_log = candidate.limit_log(strategy.estimator.share_ratio(candidate))
    if not levers or left_log < log1p(strategy.criteria.least_ratio):
        return
    plan = strategy.plan.without(*levers).with_lever(candidate.lever, setting)
    if candidate.redundant_with(setting, plan):
        return
    seen = yield from strategy.race(
        Kind.TOGGLE,
        strategy.plan,
        plan,
        lever=candidate.lever,
        expected_log=_CHANCE_RATIO * left_log,
    )
    if seen is None or not is_better(seen, strategy.criteria):
        return
    strategy.take(seen)
    strategy.deciding[candidate.lever] = seen
    for lever in levers:
        strategy.deciding.pop(lever, None)
        strategy.replaced[lever] = seen
