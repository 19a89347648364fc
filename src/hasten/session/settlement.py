"""Prove what a search found, and confirm it on fresh launches, before it is published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from hasten.errors import TRIAL_FAILURES, OutOfTime, Unprovable
from hasten.lever import lookup
from hasten.records import LEAST_RATIO, Effect, Outcome, Plan, Proof, Reason, Verdict
from hasten.search.payback import (
    blamed,
    known_training_s,
    of_all,
    passes_of,
    payback_of,
    savings,
    too_late,
    unpaid,
)
from hasten.session.decisions import Lost
from hasten.session.observe import observe, retimed, storage_note
from hasten.session.races import TooFewPairs
from hasten.session.recordings import open_prover
from hasten.trials.blocks import filling
from hasten.units import times
from hasten.verify.judge import Judge
from hasten.verify.proof_runs import declared_effect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten import compare
    from hasten.records import Interval, LossEnvelope, Passes, Profile, Workload
    from hasten.search import Candidate
    from hasten.search.costs import Costs
    from hasten.search.payback import Payback
    from hasten.session.decisions import Decisions
    from hasten.session.options import Options, Watcher
    from hasten.session.races import Races
    from hasten.session.watching import Watched
    from hasten.trials.compiled_code import CompiledCode
    from hasten.trials.deadline import Deadline
    from hasten.trials.runner import TrialRunner
    from hasten.verify.prover import Prover


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What comes out of a tuning.

    Attributes:
        plan: what the search found, as far as it was proved and confirmed.
        proof: of the plan, with what the user set by hand.
        baseline: the profile of the script as it is, with times of the confirmation.
        tuned: the profile under the plan; None where there is none.
        confirmed: the races on fresh launches; None where there were none.
        passes: the gain of the whole training, where it differs from that of its steps.
    """

    plan: Plan
    proof: Proof
    baseline: Profile
    tuned: Profile | None = None
    confirmed: compare.Confirmation | None = None
    passes: Passes | None = None


class Settlement:
    """Prove and confirm plans of one tuning.

    Args:
        costs: what the proof and the confirmation of a plan take.
        without: gives the best plan that the search knows in place of one, without some levers.

    Attributes:
        surviving: what is left of the plan so far; None before there is one.
        proved: its proof; None before there is one.
        envelope: what a real run is held against.
        launch_count: runs for proofs.
    """

    def __init__(
        self, workload: Workload, options: Options, view: Watcher, watched: Watched, *,
        runner: TrialRunner, races: Races, decisions: Decisions, code: CompiledCode,
        deadline: Deadline, costs: Callable[[Plan], Costs],
        without: Callable[[Plan, frozenset[str]], Plan],
    ) -> None:  # fmt: skip
        self.surviving: Plan | None = None
        self.proved: Proof | None = None
        self.envelope: LossEnvelope | None = None
        self.launch_count = 0
        self._workload = workload
        self._options = options
        self._view = view
        self._watched = watched
        self._runner = runner
        self._races = races
        self._decisions = decisions
        self._code = code
        self._deadline = deadline
        self._costs = costs
        self._without = without

    def settle(self, plan: Plan, *, end_s: float) -> Answer:
        """Prove and confirm a plan; where the gain is not seen again, the part that won alone.

        An answer is due at `end_s`, by the clock of the deadline.

        Raises:
            OutOfTime: the budget has ended.
            KeyboardInterrupt: the user stopped it before a plan was confirmed.
        """
        while plan.settings:
            self.surviving = plan
            if self._races.interrupted:
                raise KeyboardInterrupt
            plan, proof = self._prove(plan)
            if not plan.settings:
                return self._answer(plan, proof)
            seen = self._confirm(plan, end_s)
            if not isinstance(seen, Lost):
                tuned = _observed(self._runner, self._races, self._options.with_applied(plan))
                payback, passes = self._payback(plan, seen.speedup), self._passes(plan, seen)
                lost = self._unpaid(of_all(payback, passes), passes)
                if lost is None:
                    whole = passes.whole if passes else seen.speedup
                    self._decisions.notes += savings(
                        payback, whole.mid_ratio, self._options.training_s, passes=passes
                    )
                    return self._confirmed(plan, proof, seen, passes, tuned=tuned)
                seen = lost
            rest = self._rest(plan, seen)
            self._decisions.lose(plan.levers - rest.levers, Outcome.DROPPED, seen)
            self.surviving, self.proved, plan = rest, None, rest
        # Nothing helps; what the user set by hand is judged nevertheless.
        return self._answer(*self._prove(Plan()))

    def unproved(self, plan: Plan) -> Proof:
        """Return the proof of a plan that was not judged: the effect that its levers declare."""
        return Proof(effect=declared_effect(self._options.judged(plan)))

    def _answer(self, plan: Plan, proof: Proof) -> Answer:
        return Answer(plan=plan, proof=proof, baseline=self._watched.baseline)

    def _confirmed(
        self, plan: Plan, proof: Proof, seen: compare.Confirmation, passes: Passes | None,
        *, tuned: Profile | None,
    ) -> Answer:  # fmt: skip
        """Return the script with and without its plan, with the times of the confirmation."""
        statistics, baseline = self._runner.statistics, self._watched.baseline
        own, other = self._options.applied, self._options.with_applied(plan)
        if tuned is not None:
            candidates_s = [pair.candidate_s for pair in seen.pairs]
            tuned = replace(tuned, sample_count=baseline.sample_count)  # batches may differ in size
            tuned = retimed(tuned, statistics, other, candidates_s)
            before_s = [pair.baseline_s for pair in seen.pairs]
            baseline = retimed(baseline, statistics, own, before_s)
            found, first = self._watched.diagnosis, self._watched.baseline
            self._decisions.notes += storage_note(found, first, baseline)
        return Answer(
            plan=plan, proof=proof, baseline=baseline, tuned=tuned, confirmed=seen, passes=passes
        )

    # ---- the proof

    def _prove(self, plan: Plan) -> tuple[Plan, Proof]:
        """Return the part of a plan that passes the gates, and its proof."""
        if not self._options.judged(plan).settings:
            return plan, Proof(effect=Effect.EXACT)
        from hasten.trials.process import best_isolation

        self._runner.children.clear()
        with open_prover(
            self._workload,
            isolation=best_isolation(self._workload.cwd),
            step_s=self._watched.baseline.step_s,
            start_s=self._runner.starts.start_s,
            patience_s=self._options.patience_s,
            parameter_count=self._watched.context.traits.model.parameter_count or 0,
            code=self._code,
            at_once_count=1 if self._runner.pace.single_process else 2,
            assumed=self._options.assumed,
            deadline=self._deadline,
            reference=self._options.reference,
        ) as prover:
            judge = Judge(
                partial(self._ask, prover),
                self._is_in_time,
                has_applied=bool(self._options.judged(Plan()).settings),
            )
            try:
                proof = judge.judge(plan)
            except Unprovable as failure:
                return self._give_up(plan, failure), self.unproved(Plan())
            finally:
                self.launch_count += prover.launch_count
                self._blame(plan, judge)
        return judge.plan, proof

    def _ask(self, prover: Prover, plan: Plan) -> Proof:
        judged = self._options.judged(plan)
        self._view.stage("proof", f"does the script learn the same under {judged}?")
        proof = prover.prove(judged)
        self.envelope = prover.envelope
        return proof

    def _blame(self, plan: Plan, judge: Judge) -> None:
        """Record why each lever had to go, even where the user ends the proof early."""
        self.surviving, self.proved = judge.plan, judge.proof
        if judge.fails_alone:
            lost = Lost(None, f"{self._options.applied} fails alone")
            self._decisions.lose(plan.levers, Outcome.DROPPED, lost)
            return
        for lever, why in judge.rejected.items():
            lost = Lost(Reason.FAILED_GATE, f"faster, but {why}")
            self._decisions.lose(frozenset({lever}), Outcome.REJECTED, lost)
            self._view.known(f"rejected {lever}: {why}")

    def _give_up(self, plan: Plan, failure: Unprovable) -> Plan:
        """Drop every lever where the script itself cannot be recorded."""
        lost = Lost(Reason.UNPROVED, "faster, but not proved")
        self._decisions.lose(plan.levers, Outcome.DROPPED, lost)
        faster = f"{plan} is faster, but nothing" if plan.settings else "Nothing"
        self._decisions.notes.append(f"{faster} can be proved here: {failure}")
        return Plan()

    def _is_in_time(self, plan: Plan) -> bool:
        """Return whether a plan can still be proved and confirmed."""
        return self._costs(plan).answer_s <= self._deadline.left_s

    # ---- the confirmation

    def _confirm(self, plan: Plan, end_s: float) -> compare.Confirmation | Lost:
        """Race the plan on fresh launches; return what they show, or why the plan is lost."""
        self._view.stage("confirmation", f"fresh launches: the script against {plan}")
        notes = self._decisions.notes
        try:
            seen = _raced(self._races, plan, end_s, self._costs(plan), self._deadline)
        except TRIAL_FAILURES as failure:
            self._runner.children.clear()
            notes.append(f"On fresh launches {plan} was not raced: {failure.last_words}")
            why = f"not raced on fresh launches: {failure.last_words}"
            return Lost(Reason.NOT_RACED_AGAIN, why)
        except TooFewPairs as few:
            found = f"On fresh launches {plan} gave {times(few.seen.speedup.mid_ratio)}"
            notes.append(f"{found}, in too few pairs to tell it from chance.")
            raise
        if seen.verdict is not Verdict.WIN:
            found = f"On fresh launches {plan} gave {times(seen.speedup.mid_ratio)}"
            if seen.speedup.mid_ratio >= 1.0 + LEAST_RATIO:
                why = "launches of the script may differ by as much"
                notes.append(f"{found}, but {why}.")
                return Lost(Reason.LAUNCHES_DIFFER, f"faster on fresh launches, but {why}")
            notes.append(f"{found}: no measurable gain.")
            return Lost(Reason.NOT_SEEN_AGAIN, "the gain was not seen on fresh launches")
        if seen.stalls:
            why = (
                f"most steps are {times(seen.speedup.mid_ratio)} faster, but some stall: "
                f"{times(seen.means_ratio)} on average"
            )
            notes.append(f"On fresh launches under {plan} {why}.")
            return Lost(Reason.STALLS, why)
        return seen

    def _unpaid(self, payback: Payback | None, passes: Passes | None) -> Lost | None:
        """Return why a faster plan is not worth its start or its first pass; None if it is."""
        if why := unpaid(passes):
            is_first = passes is not None and passes.longer_s
            return Lost(Reason.FIRST_PASS if is_first else Reason.EVALUATION, why)
        own = self._options.applied
        step_s = self._watched.baseline.step_s + self._runner.statistics.outside_s(own, own)[0]
        life_count = self._runner.pace.life_count
        training_s = known_training_s(self._options.training_s, life_count, step_s=step_s)
        if why := too_late(payback, training_s):
            return Lost(Reason.STARTS_LATE, why)
        return None

    def _rest(self, plan: Plan, lost: Lost) -> Plan:
        """Return the part of a plan that may hold where the whole does not."""
        gone = frozenset[str]()
        if lost.reason is Reason.STARTS_LATE:
            own, other = self._options.applied, self._options.with_applied(plan)
            later_s = self._runner.starts.later_s(own, other) or 0.0
            gone = blamed(plan, self._watched.journal.history, later_s=later_s)
        elif lost.reason is Reason.FIRST_PASS:
            gone = filling(plan).levers
        if gone:
            return _instead(plan, gone, self._without(plan, gone), self._watched.candidates)
        rest = self._decisions.won_alone(plan)
        if rest.settings:  # levers that make launches alike stay with them
            steady = {lever.name for lever, _ in lookup(plan) if lever.steadies}
            rest = plan.only(rest.levers | steady)
            rest = rest if rest != plan else Plan()
        return rest if self._is_in_time(rest) else Plan()

    def _payback(self, plan: Plan, speedup: Interval) -> Payback | None:
        own, other = self._options.applied, self._options.with_applied(plan)
        starts = self._runner.starts
        return payback_of(
            starts.later_s(own, other),
            first_pass_s=starts.first_pass_s(own, other),
            step_s=self._watched.baseline.step_s,
            speedup_ratio=speedup.mid_ratio,
        )

    def _passes(self, plan: Plan, seen: compare.Confirmation) -> Passes | None:
        """Return the gain of the whole training by a race of its steps; None where it is theirs."""
        own, other = self._options.applied, self._options.with_applied(plan)
        assert seen.speedup is not None  # noqa: S101  # there are pairs
        cost_s = median(pair.baseline_s for pair in seen.pairs)
        outside_s, under_s = self._runner.statistics.outside_s(own, other)
        block_count = self._runner.pace.shape(own, other, apart=True).block_count
        rare_s, off_s = self._runner.rhythm.rare_s(block_count)
        outside_s, under_s = outside_s + rare_s, under_s + rare_s
        if filling(other).settings:  # the first evaluation is longer then, and later ones shorter
            under_s = outside_s
        return passes_of(
            self._watched.context.traits,
            seen.speedup,
            step_s=cost_s * self._watched.baseline.sample_count,
            longer_s=self._runner.starts.first_pass_s(own, other),
            outside_s=outside_s,
            outside_under_s=under_s,
            outside_off_s=off_s,
            training_s=self._options.training_s,
            life_count=self._runner.pace.life_count,
        )


def _observed(runner: TrialRunner, races: Races, plan: Plan) -> Profile | None:
    """Look at a plan that is confirmed, if there is time and the user waits for it."""
    if races.interrupted:
        return None
    try:
        return observe(runner, plan)
    except (KeyboardInterrupt, OutOfTime, *TRIAL_FAILURES) as stop:
        races.interrupted = isinstance(stop, KeyboardInterrupt)
        runner.children.clear()
        return None


def _instead(
    plan: Plan, levers: frozenset[str], known: Plan, candidates: Sequence[Candidate]
) -> Plan:
    """Return a plan without some levers, and with what they had displaced in the search.

    That is in `known`, the best plan that the search knows without them.
    """
    rest = plan.without(*levers)
    for candidate in candidates:
        setting = dict(known.settings).get(candidate.lever)
        if setting is None or candidate.lever in rest.levers:
            continue
        if not candidate.redundant_with(setting, rest):
            rest = rest.with_lever(candidate.lever, setting)
    return rest


def _raced(
    races: Races, plan: Plan, end_s: float, costs: Costs, deadline: Deadline
) -> compare.Confirmation:
    """Confirm until an answer is due; if that was too short to tell, again with all of the budget.

    Raises:
        TooFewPairs: there was too little time to see whether the gain is really there.
    """
    seen, few = _raced_until(races, plan, end_s - costs.observe_s)
    has_time = deadline.end_s > end_s and deadline.left_s >= costs.confirm_s + costs.observe_s
    if _is_open(seen) and has_time:
        try:
            seen, few = _raced_until(races, plan, deadline.end_s - costs.observe_s)
        except OutOfTime:
            if few is not None:
                raise
    if few is not None and _is_open(seen):
        raise few
    return seen


def _raced_until(
    races: Races, plan: Plan, until_s: float
) -> tuple[compare.Confirmation, TooFewPairs | None]:
    """Confirm once; return what it showed, and why that says little, if it does."""
    try:
        return races.confirm(plan, until_s=until_s), None
    except TooFewPairs as few:
        return few.seen, few


def _is_open(seen: compare.Confirmation) -> bool:
    """Return whether there may be a gain that was not shown."""
    return seen.verdict is Verdict.UNDECIDED and seen.speedup.mid_ratio >= 1.0 + LEAST_RATIO
