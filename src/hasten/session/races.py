"""The races of a tuning: the noise of this machine, one candidate, the published figure."""

from __future__ import annotations

import math
import random
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from hasten import compare, search
from hasten.errors import TRIAL_FAILURES, OutOfTime
from hasten.lever import lookup
from hasten.records import LEAST_RATIO, Comparison, Noise, Plan, Verdict
from hasten.search import Kind
from hasten.search.costs import (
    CONFIRM_LEAST_COUNT,
    CONFIRM_LEAST_S,
    CONFIRM_ROUNDS,
    NOISE_LEAST_COUNT,
    NOISE_LEAST_S,
)
from hasten.search.payback import known_training_s, pass_count_of
from hasten.trials.blocks import both_start_s
from hasten.units import duration, percent, times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.records import Interval, Pair
    from hasten.session.options import Options, Watcher
    from hasten.trials.runner import TrialRunner

COARSEST_RATIO = 0.05
_COIN_SEED = 20_240_601
_NOISE_SHARE, _NOISE_MOST_S, _NOISE_MOST_COUNT = 0.05, 12.0, 60
_QUICK_COUNT = 3
_CONFIRM_SHARE, _CONFIRM_LEAST_S, _CONFIRM_MOST_S = 0.2, 8.0, 60.0
_CONFIRM_WANTED_S = 30.0
_CONFIRM_MOST_ROUNDS, _LATE_RATIO = 6, 1.2
_REDRAWN_GROWTH = 1.1  # an interval of many pairs takes milliseconds
_CALM_SHARE = 0.2  # the share of a step that is never blamed on page faults
_RACE_USUAL_COUNT, _RACE_USUAL_S = 16, 8.0
_CONFIRM_MOST_COUNT, _CONFIRM_TRIAL_COUNT = 24, 2
_NEIGHBOURS_LEAST_COUNT = 4
_PATIENT_SHARE = 0.5


class TooFewPairs(OutOfTime):
    """The time was too short for a confirmation to decide; `seen` is what it showed."""

    def __init__(self, seen: compare.Confirmation) -> None:
        super().__init__()
        self.seen = seen


class Races:
    """Run the races of one tuning, and tell the watcher.

    Attributes:
        noise: of the A/A run, after `measure_noise`.
        least_ratio: the gain that is worth a lever here: 2%, or what can be resolved, up to 5%.
        interrupted: the user ended it once enough of a confirmation had been seen.
    """

    def __init__(
        self,
        runner: TrialRunner,
        options: Options,
        view: Watcher,
        *,
        fault_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.noise: Noise | None = None
        self.least_ratio = LEAST_RATIO
        self.interrupted = False
        self._nulls: tuple[float, ...] = ()
        self._pass_count = pass_count_of(None, 0.0)
        self._rounds: dict[Plan, list[compare.Confirmation]] = {}
        self._seen: dict[Plan, Comparison] = {}
        self._runner = runner
        self._options = options
        self._view = view
        self._fault_s = fault_s
        self._clock = clock
        self._coin = random.Random(_COIN_SEED)

    @property
    def confirm_s(self) -> float:
        """Seconds of pairs that a confirmation should have."""
        share_s = _CONFIRM_SHARE * self._options.aim_s
        return min(max(_CONFIRM_LEAST_S, share_s), _CONFIRM_MOST_S)

    def measure_noise(self, *, quickly: bool = False) -> Noise:
        """Measure what can be told apart here at all, by racing the script against itself.

        Args:
            quickly: the budget has no time for a second child; neighbouring steps of the profile
                must do. Where too few were watched, three pairs are run in two launches.
        """
        noise = self._neighbours_noise() if quickly else None
        if noise is None:
            noise = self._launches_noise(
                least_count=_QUICK_COUNT if quickly else NOISE_LEAST_COUNT,
                most_s=0.0 if quickly else _NOISE_MOST_S,
            )
            self._nulls = (math.log(noise.bias.mid_ratio),)
        self.noise = noise
        count = int(self.confirm_s / noise.pair_s)
        coarse_ratio = max(
            compare.resolution(noise.sd_ratio, pair_count=count),
            abs(math.log(noise.bias.mid_ratio)),
        )
        self.least_ratio = max(LEAST_RATIO, min(coarse_ratio, COARSEST_RATIO))
        self._view.known(
            f"smallest detectable change in {duration(self.confirm_s)}: "
            f"{percent(max(LEAST_RATIO, noise.resolution_ratio))}"
        )
        return noise

    def _neighbours_noise(self) -> Noise | None:
        """Return the noise of neighbouring steps in one child; None where too few were watched."""
        own = self._options.applied
        block_count = self._runner.pace.shape(own, own, apart=True).block_count
        # Shorter blocks are noisier, so they promise less than whole passes over the data would.
        halves = (block_count >> power for power in range(block_count.bit_length()))
        pairs = next(filter(None, map(self._neighbours, halves)), None)
        if pairs is None:
            return None
        pair_s = max(1e-3, self._runner.pace.pair_s(own, own, apart=True))
        return self._noise_of(pairs, pair_s=pair_s)

    def _neighbours(self, block_count: int) -> Sequence[Pair]:
        """Return pairs of neighbouring blocks of the profile; none where there are too few."""
        pairs = self._runner.rhythm.neighbours(block_count)
        return pairs if len(pairs) >= _NEIGHBOURS_LEAST_COUNT else ()

    def _launches_noise(self, *, least_count: int, most_s: float) -> Noise:
        """Race two launches of the script; no longer than `most_s` once it has the least count."""
        own = self._options.applied
        measure = partial(self._runner.pairs, own, own)
        self._view.stage("noise", "the script against itself")
        self._runner.prepare(own, own)
        self._view.race_begins(Plan(), Plan())
        seconds = min(max(NOISE_LEAST_S, _NOISE_SHARE * self._options.aim_s), most_s)
        started_s = self._clock()
        pairs = list(measure([True, False]))
        pair_s = (self._clock() - started_s) / len(pairs)
        count = max(least_count, min(int(seconds / pair_s), _NOISE_MOST_COUNT))
        pairs += measure([self._coin.random() < 0.5 for _ in range(count - len(pairs))])
        pair_s = (self._clock() - started_s) / len(pairs)
        noise = self._noise_of(pairs, pair_s=pair_s)
        self._view.race_grows(pairs, noise.bias)
        self._view.race_ends(
            Comparison(
                baseline=Plan(),
                candidate=Plan(),
                verdict=Verdict.UNDECIDED,
                speedup=noise.bias,
                pairs=tuple(pairs),
                wall_s=self._clock() - started_s,
            )
        )
        return noise

    def _noise_of(self, pairs: Sequence[Pair], *, pair_s: float) -> Noise:
        """Return the noise of A/A pairs; each round of a confirmation has some pairs at least."""
        least_s = CONFIRM_ROUNDS * CONFIRM_LEAST_COUNT * pair_s
        budget_s = max(self.confirm_s, least_s)
        return compare.measure_noise(pairs, pair_s=pair_s, budget_s=budget_s)

    def know(self, history: Sequence[Comparison]) -> None:
        """Take the races of an earlier run of the same search."""
        for seen in history:
            for plan, phase_s in (
                (seen.baseline, seen.baseline_phase_s), (seen.candidate, seen.phase_s),
            ):  # fmt: skip
                self._runner.rhythm.know_late(self._options.with_applied(plan), phase_s or {})
            if seen.speedup is not None:
                self._seen[seen.candidate] = seen

    def _plans(self, proposal: search.Proposal) -> tuple[Plan, Plan]:
        """Return both plans of a race, with what the user set by hand."""
        own, other = proposal.baseline, proposal.candidate
        return self._options.with_applied(own), self._options.with_applied(other)

    def least_s(self, proposal: search.Proposal) -> float:
        """Return the seconds of pairs below which a race cannot decide anything."""
        own, other = self._plans(proposal)
        return compare.DROP_LEAST_COUNT * self._runner.pace.pair_s(own, other)

    def prepare_s(self, proposal: search.Proposal) -> float:
        """Return the seconds that go by before the first pair of a race."""
        own, other = self._plans(proposal)
        compile_s, starts = 0.0, self._runner.starts
        if not starts.has_compiled(other):
            compile_s = sum(lever.start_ratio for lever, _ in lookup(other)) * starts.start_s
        return self._runner.prepare_s(own, other) + compile_s

    def price(self, proposal: search.Proposal) -> search.Price:
        """Return the least that a race costs."""
        return search.Price(
            wall_s=self.prepare_s(proposal) + self.least_s(proposal),
            launch_count=self._runner.launches(*self._plans(proposal)),
        )

    def race(self, proposal: search.Proposal, share_s: float, *, most_s: float) -> Comparison:
        """Race a candidate; a script that breaks under it is a result, too.

        It has `share_s` seconds of pairs, or those of a usual race if they are more, as far as
        `most_s` are left.
        """
        baseline, candidate = proposal.baseline, proposal.candidate
        self._view.race_begins(baseline, candidate)
        result = self._race(proposal, share_s, most_s=most_s)
        self._view.race_ends(result)
        if result.speedup is not None:
            self._seen[candidate] = result
            dropped = "no gain" if result.excludes_gain else "no measurable gain"
            word = {Verdict.WIN: "faster", Verdict.DROP: dropped}.get(result.verdict, "undecided")
            self._view.known(f"{_change(proposal)}: {times(result.speedup.mid_ratio)}, {word}")
        return result

    def give_up(self, proposal: search.Proposal) -> None:
        """End a race that took longer than there was time for; its children are lost."""
        baseline, candidate = proposal.baseline, proposal.candidate
        self._runner.children.clear()
        self._view.race_ends(
            Comparison(baseline=baseline, candidate=candidate, verdict=Verdict.UNDECIDED)
        )
        self._view.known(
            f"{_change(proposal)}: stopped, to leave time for the proof and the confirmation"
        )

    def _race(self, proposal: search.Proposal, share_s: float, *, most_s: float) -> Comparison:
        baseline, candidate = proposal.baseline, proposal.candidate
        own, other = self._plans(proposal)
        noise = self._noise_between(own, other)
        usual_s = min(_RACE_USUAL_COUNT * noise.pair_s, _RACE_USUAL_S)
        seconds = max(min(max(share_s, usual_s), most_s), self.least_s(proposal))
        rule = replace(rule_of(proposal.kind, noise, budget_s=seconds), most_s=most_s)
        started_s = self._clock()
        try:
            self._runner.prepare(own, other)
            rule = patient(rule, launched_s=self._clock() - started_s, pair_s=noise.pair_s)
            seen = compare.race(
                partial(self._runner.pairs, own, other),
                rule=rule,
                coin=self._coin,
                clock=self._clock,
                on_pairs=self._shower(rule.bets),
            )
        except TRIAL_FAILURES as failure:
            self._runner.children.clear()
            return Comparison(
                baseline=baseline,
                candidate=candidate,
                verdict=Verdict.FAIL,
                failure=failure.last_words,
                wall_s=self._clock() - started_s,
            )
        self._note_costs(own, other)
        result = replace(
            compare.compare(baseline, candidate, seen.pairs, rule, seen.wall_s),
            phase_s=self._runner.statistics.phase_s(other),
            baseline_phase_s=self._runner.statistics.phase_s(own),
            later_s=self._runner.starts.later_s(own, other),
        )
        return self._with_first_passes(result, own, other)

    def _with_first_passes(self, seen: Comparison, own: Plan, other: Plan) -> Comparison:
        """Return a race with what a first pass takes longer under its plans, where that differs."""
        statistics, starts = self._runner.statistics, self._runner.starts
        script, step_s = self._options.applied, statistics.step_s(own)
        pass_s = self._runner.rhythm.pass_count * step_s
        own_s, other_s = (max(0.0, starts.first_pass_s(script, each)) for each in (own, other))
        if not pass_s or own_s == other_s:
            return seen
        return replace(
            seen,
            first_pass_ratio=other_s / pass_s,
            baseline_first_pass_ratio=own_s / pass_s,
            outside_ratio=statistics.outside_s(own, own)[0] / step_s,
        )

    @property
    def pass_count(self) -> float:
        """Passes of the training over its data, a usual number where nobody knows."""
        runner, script = self._runner, self._options.applied
        outside_s = runner.statistics.outside_s(script, script)[0]
        step_s = runner.statistics.step_s(script) + outside_s
        pass_s = runner.rhythm.pass_count * step_s
        if not pass_s:
            return self._pass_count
        training_s = known_training_s(
            self._options.training_s, runner.pace.life_count, step_s=step_s
        )
        self._pass_count = pass_count_of(training_s, pass_s)
        return self._pass_count

    def _noise_between(self, own: Plan, other: Plan) -> Noise:
        """Return the noise of pairs as two plans are raced.

        In the A/A run, two children take the same steps in turns. Under two plans steps differ,
        and inside one child every turn has different steps; how much steps differ was seen when the
        script was watched.
        """
        assert self.noise is not None  # noqa: S101  # measured before the search
        noise = replace(self.noise, pair_s=max(1e-3, self._runner.pace.pair_s(own, other)))
        pairs = self._neighbours(self._runner.pace.shape(own, other).block_count)
        if not pairs:
            return noise
        return replace(noise, sd_ratio=max(noise.sd_ratio, compare.spread(pairs)))

    def _note_costs(self, *plans: Plan) -> None:
        with suppress(OutOfTime, *TRIAL_FAILURES):  # the script may end here; the race is over
            for plan in plans:
                self._runner.note_costs(plan)

    def confirm(self, plan: Plan, *, until_s: float) -> compare.Confirmation:
        """Race a plan against the script on fresh launches; this figure is published.

        Launches differ by more than the pairs within one, so there are as many rounds of launches
        as the time allows, at least two, with few pairs in each. Only the clock decides how many.
        Rounds of an earlier confirmation of the same plan count, so that none is left out. It
        should be over at `until_s` by the clock, but each round runs at least six pairs.

        Raises:
            TooFewPairs: it is undecided after fewer pairs than the noise calls for.
            KeyboardInterrupt: the user stopped it before it had shown a gain.
        """
        own, other = self._options.applied, self._options.with_applied(plan)
        self._runner.rhythm.look(self._runner.statistics, own, other)
        rounds = self._rounds.setdefault(plan, [])
        if not rounds:  # those of earlier rounds belong to the figure
            self._runner.statistics.forget_steps()
        own_s, other_s = map(self._runner.pace.launch_s, (own, other))
        launches_s = both_start_s(own_s, other_s, single_process=self._runner.pace.single_process)
        least_count = self._least_confirming_count(plan)
        pairs_s = least_count * self._runner.pace.pair_s(own, other, apart=True)
        round_count = _round_count(until_s - self._clock(), launches_s=launches_s, pairs_s=pairs_s)
        least_s = CONFIRM_ROUNDS * CONFIRM_LEAST_S / round_count
        most_s = max(pairs_s, _CONFIRM_MOST_S / round_count)
        for index in range(_CONFIRM_MOST_ROUNDS):
            started_s = self._clock()
            left_s = until_s - started_s
            if index >= CONFIRM_ROUNDS and left_s < launches_s + max(least_s, pairs_s):
                break
            share_s = left_s / max(1, round_count - index) - launches_s
            seconds = max(least_s, min(share_s, most_s))
            try:
                one = self._confirm_once(
                    plan, seconds, wanted_s=_CONFIRM_WANTED_S / round_count,
                    least_count=least_count, plan_first=len(rounds) % 2 == 1,
                )  # fmt: skip
            except (OutOfTime, KeyboardInterrupt) as stop:
                if len(rounds) < CONFIRM_ROUNDS:
                    raise
                self._runner.children.clear()
                self.interrupted = isinstance(stop, KeyboardInterrupt)
                break  # the rounds before are enough
            rounds.append(one)
            launches_s = max(launches_s, self._clock() - started_s - seconds)
        states = [self._states(each) for each in (own, other)]
        seen = compare.span(rounds, nulls=self._nulls, states=states)
        if self.interrupted and seen.verdict is not Verdict.WIN:
            raise KeyboardInterrupt
        if seen.verdict is Verdict.UNDECIDED and len(seen.pairs) < CONFIRM_ROUNDS * least_count:
            raise TooFewPairs(seen)
        return seen

    def _states(self, plan: Plan) -> Sequence[float]:
        """Return, for each launch of a plan, the log ratio by which faults lengthened steps."""
        counts = self._runner.statistics.faults(plan)
        step_s = self._runner.statistics.step_s(plan)
        if self._fault_s is None or not counts or not step_s:
            return ()
        faults_s = [self._fault_s * count for count in counts]
        calm_s = max(step_s - fmean(faults_s), _CALM_SHARE * step_s)
        return [math.log1p(seconds / calm_s) for seconds in faults_s]

    def _confirm_once(
        self, plan: Plan, seconds: float, *, wanted_s: float, least_count: int, plan_first: bool
    ) -> compare.Confirmation:
        """Race both plans on fresh launches; which is launched first alternates between rounds."""
        assert self.noise is not None  # noqa: S101
        self._runner.children.clear()
        own, other = self._options.applied, self._options.with_applied(plan)
        launched = (other, own) if plan_first else (own, other)
        self._runner.prepare(*launched, apart=True)
        measure = partial(self._runner.pairs, own, other, apart=True)
        pair_s, started_s = self._runner.pace.pair_s(own, other, apart=True), self._clock()
        if (_CONFIRM_TRIAL_COUNT + least_count) * pair_s <= seconds:
            measure([True, False])
            tried_s = (self._clock() - started_s) / _CONFIRM_TRIAL_COUNT
            # Two pairs do not show what it costs to start a short script again and again.
            is_short = self._runner.pace.life_count is not None
            pair_s = max(tried_s, pair_s) if is_short else tried_s
        left_s = max(0.0, seconds - (self._clock() - started_s))
        fitting_count = int(left_s / max(1e-6, pair_s))
        planned_count = compare.confirming_pairs(
            replace(self.noise, pair_s=max(1e-6, pair_s)),
            wanted_ratio=LEAST_RATIO,
            budget_s=left_s,
            least_s=min(left_s, wanted_s),
        )
        count = max(planned_count, min(least_count, fitting_count))
        self._view.race_begins(Plan(), plan)
        seen = compare.confirm(
            measure,
            pair_count=count,
            coin=self._coin,
            clock=self._clock,
            on_pairs=self._shower(compare.grid(self.noise.sd_ratio)),
        )
        self._note_costs(own, other)
        self._view.race_ends(confirmed_race(plan, seen))
        return seen

    def _least_confirming_count(self, plan: Plan) -> int:
        """Return the pairs needed to show half the gain of the search in the noise of the search.

        A plan with loader workers is many times noisier than the script against itself.
        """
        seen = search.last_about(plan, self._seen.values())
        if seen is None or seen.speedup is None or len(seen.pairs) < CONFIRM_LEAST_COUNT:
            return CONFIRM_LEAST_COUNT
        wanted_ratio = max(LEAST_RATIO, (seen.speedup.mid_ratio - 1.0) / 2)
        noise = compare.measure_noise(seen.pairs, pair_s=1.0, budget_s=1.0)
        count = compare.plan_pairs(noise, wanted_ratio=wanted_ratio, budget_s=_CONFIRM_MOST_COUNT)
        return max(CONFIRM_LEAST_COUNT, count)

    def _shower(self, bets: Sequence[float]) -> Callable[[Sequence[Pair]], None]:
        """Tell the watcher about pairs, with an interval that is valid at every look."""
        logs: list[float] = []
        shown: tuple[int, Interval] | None = None

        def show(pairs: Sequence[Pair]) -> None:
            nonlocal shown
            logs.extend(pair.log_ratio for pair in pairs)
            if shown is None or len(logs) >= _REDRAWN_GROWTH * shown[0]:
                shown = len(logs), compare.confidence_sequence(logs, bets=bets)
            self._view.race_grows(pairs, shown[1])

        return show


def _change(proposal: search.Proposal) -> Plan:
    """Return what the candidate of a race has and its baseline has not."""
    return proposal.candidate.only(proposal.baseline.differing(proposal.candidate))


def _round_count(window_s: float, *, launches_s: float, pairs_s: float) -> int:
    """Return the rounds of launches that a confirmation plans for.

    >>> [_round_count(window_s, launches_s=4.0, pairs_s=1.2) for window_s in (10.0, 40.0, 90.0)]
    [2, 6, 6]
    """
    for count in range(_CONFIRM_MOST_ROUNDS, CONFIRM_ROUNDS, -1):
        round_s = launches_s + max(CONFIRM_ROUNDS * CONFIRM_LEAST_S / count, pairs_s)
        if _LATE_RATIO * count * round_s <= window_s:
            return count
    return CONFIRM_ROUNDS


def rule_of(kind: Kind, noise: Noise, *, budget_s: float) -> compare.Rule:
    """Return when a race ends.

    A new lever is dropped where it gains less than can be shown in this noise. A lever that is
    already in came in for a reason: it is dropped where it gains less than is worth a lever.
    """
    rule = compare.rule_for(noise, budget_s=budget_s, least_ratio=LEAST_RATIO)
    return replace(rule, least_ratio=LEAST_RATIO) if kind is Kind.PRUNE else rule


def patient(rule: compare.Rule, *, launched_s: float, pair_s: float) -> compare.Rule:
    """Return a rule that is slower to drop a candidate whose launches took long."""
    count = min(rule.pair_count, int(_PATIENT_SHARE * launched_s / pair_s))
    return replace(rule, patient_count=count)


def confirmed_race(plan: Plan, seen: compare.Confirmation) -> Comparison:
    """Return a confirmation as the race of a plan against the script."""
    return Comparison(
        baseline=Plan(),
        candidate=plan,
        verdict=seen.verdict,
        speedup=seen.speedup,
        means_ratio=seen.means_ratio,
        pairs=seen.pairs,
        wall_s=seen.wall_s,
    )
