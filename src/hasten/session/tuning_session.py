"""One tuning, from the first launch to the last pair."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from hasten import compare, search
from hasten.errors import TRIAL_FAILURES
from hasten.lever import ScriptContext, discover
from hasten.records import (
    Cost,
    Effect,
    LeverReport,
    Outcome,
    Plan,
    Profile,
    Proof,
    Reason,
    Tuning,
    Verdict,
)
from hasten.session import setup
from hasten.session.candidates import advice, find_knobs
from hasten.session.costs import LOOK_S, Costs, costs_of, first_costs, refuse_too_short
from hasten.session.examine import examine
from hasten.session.journals import open_journal
from hasten.session.judge import Judge
from hasten.session.observe import observe, retimed, where
from hasten.session.payback import blamed, passes_of, payback_of, savings, too_late, unpaid
from hasten.session.proof import Prover, Unprovable, declared_effect, effects
from hasten.session.protection import refuse_ranks
from hasten.session.races import LEAST_RATIO, Races, confirmed_race
from hasten.session.search_driver import SearchDriver
from hasten.trials.blocks import filling
from hasten.trials.compiled_code import CompiledCode
from hasten.trials.deadline import Deadline, OutOfTime
from hasten.units import times

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.records import Diagnosis, Interval, LossEnvelope, Passes, Workload
    from hasten.session.options import Options, Watcher
    from hasten.session.payback import Payback
    from hasten.trials.runner import TrialRunner


@dataclass(frozen=True, slots=True)
class _Lost:
    """Why levers that were faster are not in the plan."""

    reason: Reason | None
    why: str


class TuningSession:
    """The state of one tuning; `tune` runs it once."""

    def __init__(
        self,
        workload: Workload,
        options: Options,
        view: Watcher,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workload = workload
        self._options = options
        self._view = view
        self._clock = clock
        self._started_s = clock()
        self._deadline = Deadline(self._started_s + options.budget_s, clock=clock)
        self._notes: list[str] = []
        self._rows: list[LeverReport] = []
        self._proof_launches_count = 0
        self._envelope: LossEnvelope | None = None
        self._diagnosis: Diagnosis | None = None
        self._journal: search.Journal | None = None
        self._surviving: Plan | None = None
        self._proved: Proof | None = None

    def tune(self) -> Tuning:
        """Run it from the first launch to the last pair.

        Raises:
            ScriptFailed: the script itself does not train.
            UsageError: the budget holds no answer.
            KeyboardInterrupt: before there was anything to keep.
        """
        self._view.stage("machine", "reading what this job may use")
        self._machine = setup.doctor(self._workload.python, patience_s=self._deadline.left_s)
        with (
            CompiledCode() as self._code,
            setup.open_runner(
                self._workload, self._options, self._machine, self._code, deadline=self._deadline
            ) as runner,
        ):
            self._runner = runner
            try:
                journal = self._look(runner)
            except OutOfTime:
                budget_s = self._options.budget_s
                refuse_too_short(budget_s, self._spent_s(), first_costs(runner, self._spent_s()))
                raise
            return self._story(journal)

    def _look(self, runner: TrialRunner) -> search.Journal:
        """Watch the script as it is, and find what may be tried on it."""
        self._view.stage("baseline", "starting the script as it is")
        runner.trial(self._options.applied)
        budget_s = self._options.budget_s
        refuse_too_short(budget_s, self._spent_s(), first_costs(runner, self._spent_s()))
        self._baseline = observe(runner, self._options.applied)
        self._view.profiled(self._baseline)
        self._view.known(where(self._baseline))
        for note in runner.notes:
            self._view.note(note)
        seen, applied = self._baseline, self._options.applied
        costs = costs_of(runner, seen, self._machine, baseline=applied, candidate=applied)
        refuse_too_short(budget_s, self._spent_s(), costs)
        self._diagnosis = examine(
            runner, self._options.applied, self._baseline, self._machine, seconds=LOOK_S,
            assumed=self._options.assumed,
        )  # fmt: skip
        self._view.found(self._diagnosis)
        traits = runner.facts(self._options.applied).traits
        refuse_ranks(traits.rank_count)
        self._context = ScriptContext(
            machine=self._machine, baseline=self._baseline, traits=traits,
            assumed=self._options.assumed,
        )  # fmt: skip
        self._notes += advice(self._context)
        self._races = Races(runner, self._options, self._view, clock=self._clock)
        journal = open_journal(self._workload, self._options, self._machine, torch=traits.torch)
        self._knobs, rows = find_knobs(
            self._context, self._options, least_ratio=LEAST_RATIO,
            begun=journal.begun, findings=self._diagnosis.findings,
        )  # fmt: skip
        self._rows = [*rows]
        self._left_out = rows
        if not self._knobs:
            self._notes.append("No lever can reach 2% here: see why each was left out.")
        self._journal = journal
        # A closer look leaves marks: a large block that a probe frees makes glibc keep what the
        # script frees, and this child would be faster than any run of the script.
        runner.clear()
        journal.settle(
            search.RaceStarted(
                settings={knob.lever: knob.settings for knob in self._knobs},
                named={k.lever: k.named_ratio for k in self._knobs if k.named_ratio},
            )
        )
        return journal

    def _story(self, journal: search.Journal) -> Tuning:
        self._driver = SearchDriver(
            self._knobs, journal, runner=self._runner, races=self._races, options=self._options,
            view=self._view, costs=self._costs, spent_s=self._spent_s, note=self._notes.append,
        )  # fmt: skip
        self._driver.check_the_budget()
        try:
            if self._driver.best.settings or not self._driver.is_over:
                self._races.measure_noise(quickly=self._driver.hurried)
            result = self._answer()
            if self._driver.goes_on(result):
                result = self._better(result)
        except KeyboardInterrupt:
            return self._stopped(interrupted=True)
        except OutOfTime:
            return self._stopped()
        journal.forget()
        return result

    def _answer(self) -> Tuning:
        """Search, then prove and confirm what was found."""
        self._driver.run()
        self._rows = [*self._left_out, *self._driver.rows()]
        return self._settle(self._driver.best)

    def _better(self, first: Tuning) -> Tuning:
        """Go on from a first answer, which is kept unless a better one is confirmed in time."""
        assert first.speedup is not None  # noqa: S101  # the search goes on from a confirmed one
        best, second = self._driver.best, first
        message = f"first answer: {times(first.speedup.mid_ratio)} by {first.plan}"
        self._view.known(
            f"{message}; the search goes on while that may pay; Ctrl-C keeps this answer"
        )
        with suppress(KeyboardInterrupt, OutOfTime):
            self._driver.run()
            if self._driver.best != best:
                second = self._answer()
        if second.speedup and second.speedup.mid_ratio > first.speedup.mid_ratio:
            return second
        return replace(first, cost=self._cost, races=self._driver.history)

    def _settle(self, plan: Plan) -> Tuning:
        """Prove and confirm a plan; where the gain is not seen again, the part that won alone."""
        while plan.settings:
            self._surviving = plan
            plan, proof = self._prove(plan)
            if not plan.settings:
                return self._result(plan, proof)
            self._proved = proof
            seen = self._confirm(plan)
            if isinstance(seen, _Lost):
                rest, lost = self._proven_part(plan), seen
            else:
                training_s = self._options.training_s
                payback, passes = self._payback(plan, seen.speedup), self._passes(plan, seen)
                if why := too_late(payback, training_s):
                    rest, lost = self._early_part(plan), _Lost(Reason.STARTS_LATE, why)
                elif why := unpaid(passes):
                    rest = plan.only(plan.differing(filling(plan)))
                    lost = _Lost(Reason.FIRST_PASS, why)
                else:
                    whole = passes.whole if passes else seen.speedup
                    self._notes += savings(payback, whole.mid_ratio, training_s, self._spent_s())
                    return self._result(plan, proof, tuned=self._after(plan, seen), confirmed=seen)
            self._retell(plan.differing(rest), Outcome.DROPPED, lost)
            self._surviving, self._proved, plan = rest, None, rest
        # Nothing helps; what the user set by hand is judged nevertheless.
        return self._result(*self._prove(Plan()))

    def _after(self, plan: Plan, seen: compare.Confirmation) -> Profile | None:
        """Look at it under its plan, both with the times of the confirmation; None if cut short."""
        statistics, own, other = (
            self._runner.statistics,
            self._options.applied,
            self._races.with_applied(plan),
        )
        try:
            tuned = observe(self._runner, other)
        except (KeyboardInterrupt, OutOfTime, *TRIAL_FAILURES):
            return None
        before_s = [pair.baseline_s for pair in seen.pairs]
        self._baseline = retimed(self._baseline, statistics, own, before_s)
        return retimed(tuned, statistics, other, [pair.candidate_s for pair in seen.pairs])

    def _stopped(self, *, interrupted: bool = False) -> Tuning:
        """Keep the best so far, and say what it lacks; the journal stays for the next time."""
        told = {row.lever for row in self._rows}
        self._rows += [row for row in self._driver.rows(stopped=True) if row.lever not in told]
        plan = self._driver.best if self._surviving is None else self._surviving
        lacks = "neither proved nor" if self._proved is None else "proved, but not"
        lost = self._journal is not None and self._journal.lost
        on = "" if lost else " The same command goes on from here."
        why = "Interrupted" if interrupted else "The budget is spent"
        kept = f"the best so far is kept, {lacks} confirmed" if plan.settings else "no gain so far"
        self._notes.append(f"{why}: {kept}.{on}")
        seen = self._result(plan, self._proved or self._unproved(plan))
        return replace(seen, interrupted=interrupted, out_of_time=not interrupted)

    def _unproved(self, plan: Plan) -> Proof:
        return Proof(effect=declared_effect(self._races.with_applied(plan)))

    # ---- the parts

    def _prove(self, plan: Plan) -> tuple[Plan, Proof]:
        """Return what the gates let through of a plan, and its proof."""
        if not self._races.with_applied(plan).settings:
            return plan, Proof(effect=Effect.EXACT)
        from hasten.trials.process import best_isolation

        self._runner.clear()
        with Prover(
            self._workload,
            isolation=best_isolation(self._workload.cwd),
            step_s=self._baseline.step_s,
            start_s=self._runner.start_s,
            patience_s=self._options.patience_s,
            parameter_count=self._context.traits.model.parameter_count or 0,
            code=self._code,
            at_once_count=1 if self._runner.single_process else 2,
            assumed=self._options.assumed,
            deadline=self._deadline,
        ) as prover:
            judge = Judge(
                partial(self._ask, prover),
                self._is_in_time,
                has_applied=bool(self._options.applied.settings),
            )
            try:
                proof = judge.judge(plan)
            except Unprovable as failure:
                return self._give_up(plan, failure), self._unproved(Plan())
            finally:
                self._proof_launches_count += prover.launch_count
                self._blame(plan, judge)
        return judge.plan, proof

    def _ask(self, prover: Prover, plan: Plan) -> Proof:
        judged = self._races.with_applied(plan)
        self._view.stage("proof", f"does the script learn the same under {judged}?")
        proof = prover.prove(judged)
        self._envelope = prover.envelope
        return proof

    def _blame(self, plan: Plan, judge: Judge) -> None:
        """Say of each lever that had to go why, also where the user ends it in between."""
        self._surviving = judge.plan
        if judge.fails_alone:
            lost = _Lost(None, f"{self._options.applied} fails alone")
            self._retell(plan.differing(Plan()), Outcome.DROPPED, lost)
            return
        for lever, why in judge.rejected.items():
            lost = _Lost(Reason.FAILED_GATE, f"faster, but {why}")
            self._retell(frozenset({lever}), Outcome.REJECTED, lost)
            self._view.known(f"rejected {lever}: {why}")

    def _give_up(self, plan: Plan, failure: Unprovable) -> Plan:
        """Leave every lever out where it is the script itself that cannot be recorded."""
        lost = _Lost(Reason.UNPROVED, "faster, but not proved")
        self._retell(plan.differing(Plan()), Outcome.DROPPED, lost)
        faster = f"{plan} is faster, but nothing" if plan.settings else "Nothing"
        self._notes.append(f"{faster} can be proved here: {failure}")
        return Plan()

    def _confirm(self, plan: Plan) -> compare.Confirmation | _Lost:
        """Race the plan on fresh launches, and see its gain once more or lose it."""
        self._view.stage("confirmation", f"fresh launches: the script against {plan}")
        until_s = self._started_s + self._driver.end_s - self._costs(plan).observe_s
        try:
            seen = self._races.confirm(plan, until_s=until_s)
        except TRIAL_FAILURES as failure:
            self._runner.clear()
            self._notes.append(f"On fresh launches {plan} was not raced: {failure.last_words}")
            why = f"not raced on fresh launches: {failure.last_words}"
            return _Lost(Reason.NOT_RACED_AGAIN, why)
        if seen.verdict is not Verdict.WIN:
            found = f"{times(seen.speedup.mid_ratio)}: no measurable gain"
            self._notes.append(f"On fresh launches {plan} gave {found}.")
            return _Lost(Reason.NOT_SEEN_AGAIN, "the gain was not seen on fresh launches")
        if seen.stalls:
            why = (
                f"most steps are {times(seen.speedup.mid_ratio)} faster, but some stall: "
                f"{times(seen.means_ratio)} on average"
            )
            self._notes.append(f"On fresh launches under {plan} {why}.")
            return _Lost(Reason.STALLS, why)
        return seen

    def _proven_part(self, plan: Plan) -> Plan:
        """Return the levers that won a race of their own; none if all did, or if it is late."""
        kept = [row for row in self._rows if row.outcome is Outcome.KEPT]
        won = frozenset(row.lever for row in kept if row.speedup and row.speedup.is_gain)
        rest = plan.only(won)
        return rest if rest != plan and self._is_in_time(rest) else Plan()

    def _is_in_time(self, plan: Plan) -> bool:
        """Return whether a plan can still be proved and confirmed."""
        return self._costs(plan).answer_s(effects(plan)) <= self._deadline.left_s

    def _payback(self, plan: Plan, speedup: Interval) -> Payback | None:
        return payback_of(
            self._runner.statistics, self._options.applied, self._races.with_applied(plan),
            step_s=self._baseline.step_s, speedup_ratio=speedup.mid_ratio,
        )  # fmt: skip

    def _early_part(self, plan: Plan) -> Plan:
        """Return the levers that do not make the start late."""
        other = self._races.with_applied(plan)
        later_s = self._runner.statistics.later_s(self._options.applied, other) or 0.0
        late = blamed(plan, self._driver.history, later_s=later_s)
        return plan.only(frozenset(name for name, _ in plan.settings) - late)

    def _retell(self, levers: frozenset[str], outcome: Outcome, lost: _Lost) -> None:
        self._rows = [
            replace(row, outcome=outcome, why=lost.why, reason=lost.reason)
            if row.lever in levers
            else row
            for row in self._rows
        ]

    # ---- small things

    def _costs(self, plan: Plan) -> Costs:
        """Return what the parts of this tuning take, with `plan` as the one that is proved."""
        return costs_of(
            self._runner, self._baseline, self._machine, baseline=self._options.applied,
            candidate=self._races.with_applied(plan),
        )  # fmt: skip

    @property
    def _cost(self) -> Cost:
        launch_count = self._runner.launch_count + self._proof_launches_count
        return Cost(wall_s=self._spent_s(), launch_count=launch_count)

    def _spent_s(self) -> float:
        return self._clock() - self._started_s

    def _result(
        self,
        plan: Plan,
        proof: Proof,
        *,
        tuned: Profile | None = None,
        confirmed: compare.Confirmation | None = None,
    ) -> Tuning:
        order = list(discover())
        return Tuning(
            machine=self._machine,
            workload=self._workload,
            baseline=self._baseline,
            plan=self._races.with_applied(plan),
            proof=proof,
            cost=self._cost,
            tuned=tuned,
            speedup=confirmed.speedup if confirmed else None,
            means_ratio=confirmed.means_ratio if confirmed else None,
            noise=self._races.noise,
            levers=tuple(sorted(self._rows, key=lambda row: order.index(row.lever))),
            notes=(*self._runner.notes, *self._notes),
            envelope=self._envelope if proof.gates else None,
            diagnosis=self._diagnosis,
            races=self._journal.history if self._journal else (),
            confirmed=confirmed_race(plan, confirmed) if confirmed else None,
            traits=self._context.traits,
            assumed=tuple(sorted(self._options.assumed)),
            passes=self._passes(plan, confirmed) if confirmed else None,
        )

    def _passes(self, plan: Plan, seen: compare.Confirmation) -> Passes | None:
        own, other = self._options.applied, self._races.with_applied(plan)
        cost_s = median(pair.baseline_s for pair in seen.pairs)
        return passes_of(
            self._context.traits, seen.speedup, step_s=cost_s * self._baseline.sample_count,
            longer_s=self._runner.statistics.first_pass_s(own, other),
            outside_s=self._runner.statistics.outside_s,
            training_s=self._options.training_s, life_count=self._runner.life_count,
        )  # fmt: skip
