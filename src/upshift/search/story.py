"""The search told as one story: it asks for races and goes on with their answers.

The story is a generator over its own history. `propose` replays it from the start each time and
hands out the first race that nobody has run yet; so it depends on nothing but the knobs and
the comparisons, and a journal of comparisons is all the state there is.

Bundle first, then one knob at a time: performance levers interact through the bottleneck, so
what a lever does alone at the baseline says little (a compute lever shows nothing while the data
loader is late), while most interactions are synergistic. For the same reason the levers that do
nothing alone are tried once more together. Each round takes the next guess of the knobs that are
still out; the second is for what the first one uncovered. Sources: Frey, Engelhardt and Greitzer
2003, https://doi.org/10.1007/s00163-002-0026-9 (adaptive one-factor-at-a-time); Zeller and
Hildebrandt 2002, https://doi.org/10.1109/32.988498 (delta debugging).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from upshift.records import Comparison, Plan, Setting, Switch, Verdict
from upshift.search.proposal import Kind, Proposal, is_better, propose_race

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from upshift.search.knob import Knob

# Yields a race, receives its comparison, or None when it may not be run any more.
Steps: TypeAlias = "Generator[Proposal, Comparison | None, None]"
_MOST_BUNDLES = 3
_MOST_ROUNDS = 3
_MOST_PASSES = 3
_MOST_REFINEMENTS = 4
_LOSS_RATIO = 0.98


@dataclass(kw_only=True)
class Story:
    """Where a search stands.

    Attributes:
        knobs: most promising first.
        least_ratio: the gain that is worth a lever.
        plan: the incumbent.
        bundle: the comparison by which the incumbent's first knobs came in, None without one.
        together: the last race of a bundle, whatever came of it.
        deciding: for each knob the comparison that decided about it alone.
        broken: for each quarantined knob the comparison that failed.
        pruned: knobs that have been raced against their absence.
        toggled: the speed-up that each setting showed in its last toggle.
    """

    knobs: Sequence[Knob]
    least_ratio: float
    plan: Plan = field(default_factory=Plan)
    bundle: Comparison | None = None
    together: Comparison | None = None
    deciding: dict[str, Comparison] = field(default_factory=dict)
    broken: dict[str, Comparison] = field(default_factory=dict)
    pruned: set[str] = field(default_factory=set)
    toggled: dict[tuple[str, Setting], float] = field(default_factory=dict)

    def tell(self) -> Steps:
        """Run the whole search, in rounds until a round changes nothing."""
        yield from self._bundle()
        for guess_index in range(_MOST_ROUNDS):
            before = self.plan
            yield from self._toggle(guess_index)
            yield from self._join()
            yield from self._refine()
            yield from self._prune()
            if guess_index and self.plan == before:
                return

    def _race(
        self, kind: Kind, baseline: Plan, candidate: Plan, *, lever: str | None = None
    ) -> Generator[Proposal, Comparison | None, Comparison | None]:
        return (yield propose_race(kind, baseline, candidate, self.knobs, lever=lever))

    def _usable(self) -> list[Knob]:
        return [knob for knob in self.knobs if knob.lever not in self.broken]

    def _bundle(self) -> Steps:
        for _ in range(_MOST_BUNDLES):
            usable = [knob for knob in self._usable() if knob.bundled]
            if len(usable) < 2:
                return
            seen = yield from self._race(Kind.BUNDLE, Plan(), best_guess(usable))
            if seen is None:
                cheap = [knob for knob in usable if knob.switch is not Switch.LAUNCH]
                if len(cheap) < 2 or len(cheap) == len(usable):
                    return
                seen = yield from self._race(Kind.BUNDLE, Plan(), best_guess(cheap))
            self.together = seen
            if seen is None or seen.verdict is not Verdict.FAIL:
                if seen is not None and seen.verdict is Verdict.WIN:
                    self.plan, self.bundle = seen.candidate, seen
                return
            names = {name for name, _ in seen.candidate.settings}
            yield from self._bisect([k for k in usable if k.lever in names], seen)

    def _bisect(self, suspects: list[Knob], failed: Comparison) -> Steps:
        """Quarantine one knob without which the failed bundle works.

        Invariant: `sound` runs, `sound + suspects` fails. So an interaction is found as well.
        """
        sound: list[Knob] = []
        while len(suspects) > 1:
            half, rest = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
            seen = yield from self._race(Kind.BISECT, Plan(), best_guess([*sound, *half]))
            if seen is None:
                return
            if seen.verdict is Verdict.FAIL:
                suspects, failed = half, seen
            else:
                sound, suspects = [*sound, *half], rest
        self.broken[suspects[0].lever] = failed

    def _toggle(self, guess_index: int) -> Steps:
        """Try each knob that is out, again while others come in: the bottleneck moves."""
        for _ in range(_MOST_PASSES):
            before = self.plan
            for knob in self._usable():
                setting = knob.settings[min(guess_index, len(knob.settings) - 1)]
                if not self._is_in(knob) and not self._is_slower(knob, setting):
                    yield from self._try(knob, setting)
            if self.plan in (before, Plan()):
                return

    def _join(self) -> Steps:
        """Try the knobs that do nothing alone all together: two may each hide the other's gain."""
        candidate = self.plan
        for knob in self._usable():
            setting = max(knob.settings, key=lambda setting: self._seen_ratio(knob, setting))
            if not self._is_in(knob) and not self._is_slower(knob, setting):
                candidate = candidate.pull(knob.lever, setting)
        if len(self.plan.differing(candidate)) < 2:
            return
        seen = yield from self._race(Kind.BUNDLE, self.plan, candidate)
        if seen is not None and seen.verdict is Verdict.WIN:
            for lever in self.plan.differing(candidate):
                self.deciding.pop(lever, None)
                self.pruned.discard(lever)
            self.plan, self.bundle = candidate, seen

    def _is_in(self, knob: Knob) -> bool:
        return knob.lever in dict(self.plan.settings)

    def _try(self, knob: Knob, setting: Setting) -> Steps:
        candidate = self.plan.pull(knob.lever, setting)
        seen = yield from self._race(Kind.TOGGLE, self.plan, candidate, lever=knob.lever)
        if seen is None:
            return
        if seen.verdict is Verdict.FAIL:
            self.broken[knob.lever] = seen
            return
        self.deciding[knob.lever] = seen
        if seen.speedup is not None:
            self.toggled[knob.lever, setting] = seen.speedup.mid_ratio
        if is_better(seen, least_ratio=self.least_ratio):
            self.plan = candidate

    def _seen_ratio(self, knob: Knob, setting: Setting) -> float:
        """Return the last speed-up of a setting when toggled, 0 where it was not."""
        return self.toggled.get((knob.lever, setting), 0.0)

    def _is_slower(self, knob: Knob, setting: Setting) -> bool:
        """True when a setting's toggle showed a loss that no other context is likely to repay."""
        return 0.0 < self._seen_ratio(knob, setting) < _LOSS_RATIO

    def _refine(self) -> Steps:
        for knob in self.knobs:
            if self._is_in(knob) and len(knob.settings) > 1:
                if all(is_numeric(setting) for setting in knob.settings):
                    yield from self._climb(knob)
                else:
                    for setting in knob.settings[1 : 1 + _MOST_REFINEMENTS]:
                        yield from self._move(knob, setting)

    def _climb(self, knob: Knob) -> Steps:
        """Walk to a better neighbour in numeric order, up first, while it gets better."""
        ladder = sorted(knob.settings)
        start = ladder.index(dict(self.plan.settings)[knob.lever])
        left = _MOST_REFINEMENTS
        for path in (ladder[start + 1 :], ladder[:start][::-1]):
            for setting in path[:left]:
                left -= 1
                moved = yield from self._move(knob, setting)
                if not moved:
                    break
            if dict(self.plan.settings)[knob.lever] != ladder[start]:
                return

    def _move(self, knob: Knob, setting: Setting) -> Generator[Proposal, Comparison | None, bool]:
        candidate = self.plan.pull(knob.lever, setting)
        seen = yield from self._race(Kind.REFINE, self.plan, candidate, lever=knob.lever)
        if seen is None or not is_better(seen, least_ratio=self.least_ratio):
            return False
        self.plan = candidate
        return True

    def _prune(self) -> Steps:
        """Race each knob's absence against its presence, least promising first."""
        for knob in reversed(self.knobs):
            without = self.plan.without(knob.lever)
            if without == self.plan or knob.lever in self.pruned or self._is_proven(knob, without):
                continue
            seen = yield from self._race(Kind.PRUNE, without, self.plan, lever=knob.lever)
            # A failure here is that of the plan which never ran before: the one without.
            if seen is None or seen.verdict is Verdict.FAIL:
                continue
            self.deciding[knob.lever] = seen
            self.pruned.add(knob.lever)
            if not is_better(seen, least_ratio=self.least_ratio):
                self.plan = without

    def _is_proven(self, knob: Knob, without: Plan) -> bool:
        """True when its own toggle raced it around the very same other settings."""
        seen = self.deciding.get(knob.lever)
        return seen is not None and seen.baseline == without


def best_guess(knobs: Sequence[Knob]) -> Plan:
    """Return the plan of every knob at its first setting."""
    return replace(Plan(), settings=tuple(sorted((k.lever, k.settings[0]) for k in knobs)))


def is_numeric(setting: Setting) -> bool:
    """Return whether a setting has neighbours."""
    return isinstance(setting, int | float) and not isinstance(setting, bool)
