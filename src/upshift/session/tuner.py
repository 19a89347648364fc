"""One tuning, from the first launch to the last pair."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from upshift import compare, search, session
from upshift.errors import TRIAL_FAILURES, UsageError
from upshift.launch.compiled_code import CompiledCode
from upshift.lever import Scene, discover
from upshift.records import Cost, Effect, LeverReport, Plan, Profile, Proof, Tuning, Verdict
from upshift.session.costs import Costs, costs_of
from upshift.session.examine import examine
from upshift.session.hunt import Hunt
from upshift.session.journals import open_journal
from upshift.session.judge import Judge
from upshift.session.knobs import find_knobs, remarks
from upshift.session.observe import observe, retimed
from upshift.session.payback import WORTH_SAYING_S, Payback, blamed
from upshift.session.proof import Prover, Unprovable, declared_effect, effects
from upshift.session.races import LEAST_RATIO, Races, confirmed_race
from upshift.units import duration, percent, times

if TYPE_CHECKING:
    from collections.abc import Callable

    from upshift.records import Band, Diagnosis, Interval, Workload
    from upshift.session import Options, Watcher

_LOOK_S = 2.0


def _refuse_ranks(count: int) -> None:
    if count > 1:
        raise UsageError(
            f"The command trains in {count} processes, and a plan is found for one.",
            remedy="Tune it with one process; `upshift profile` measures one of them as it is.",
        )


class Tuner:
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
        self._notes: list[str] = []
        self._rows: list[LeverReport] = []
        self._proof_launches_count = 0
        self._band: Band | None = None
        self._diagnosis: Diagnosis | None = None
        self._journal: search.Journal | None = None
        self._surviving: Plan | None = None
        self._proved: Proof | None = None

    def tune(self) -> Tuning:
        """Run the whole story.

        Raises:
            ScriptFailed: the script itself does not train.
            KeyboardInterrupt: before there was anything to keep.
        """
        self._view.stage("machine", "reading what this job may use")
        self._machine = session.doctor(self._workload.python)
        with (
            CompiledCode() as self._code,
            session.open_bench(self._workload, self._options, self._machine, self._code) as bench,
        ):
            self._bench = bench
            self._view.stage("baseline", "starting the script as it is")
            self._baseline = observe(bench, self._options.pulled)
            self._view.profiled(self._baseline)
            self._say_baseline()
            for note in bench.notes:
                self._view.note(note)
            self._diagnosis = examine(
                bench, self._options.pulled, self._baseline, self._machine, seconds=_LOOK_S
            )
            self._view.found(self._diagnosis)
            traits = bench.facts(self._options.pulled)["traits"]
            _refuse_ranks(traits.get("ranks.count", 1))
            self._scene = Scene(machine=self._machine, baseline=self._baseline, traits=traits)
            self._notes += remarks(self._scene)
            self._races = Races(bench, self._options, self._view, clock=self._clock)
            journal = open_journal(
                self._workload, self._options, self._machine, torch=str(traits.get("torch"))
            )
            self._knobs, rows = find_knobs(
                self._scene, self._options, least_ratio=LEAST_RATIO, settled=journal.settings
            )
            self._rows += rows
            if not self._knobs:
                self._notes.append("No lever can reach 2 % here: see why each was left out.")
                journal.forget()
                return self._nothing()
            self._journal = journal
            journal.settle({knob.lever: knob.settings for knob in self._knobs})
            return self._story(journal)

    def _story(self, journal: search.Journal) -> Tuning:
        self._hunt = Hunt(
            self._knobs, journal, bench=self._bench, races=self._races, options=self._options,
            view=self._view, costs=self._costs, spent_s=self._spent_s, note=self._notes.append,
        )  # fmt: skip
        self._hunt.warn_of_a_short_budget()
        try:
            if self._hunt.best.settings or not self._hunt.is_over:
                self._view.stage("noise", "the script against itself")
                self._races.measure_noise()
            self._hunt.run()
            plan = self._hunt.best
            self._rows += self._hunt.rows()
            result = self._settle(plan)
        except KeyboardInterrupt:
            return self._stopped()
        journal.forget()
        return result

    def _settle(self, plan: Plan) -> Tuning:
        """Prove and confirm a plan; where the gain is not seen again, the part that won alone."""
        while plan.settings:
            self._surviving = plan
            plan, proof = self._prove(plan)
            if not plan.settings:
                return self._result(plan, proof)
            self._proved = proof
            seen, why = self._confirm(plan)
            if seen is None:
                rest = self._proven_part(plan)
            elif why := self._why_too_late(plan, seen.speedup):
                rest = self._early_part(plan)
            else:
                self._say_what_it_saves(plan, seen.speedup)
                return self._result(plan, proof, tuned=self._after(plan, seen), confirmed=seen)
            self._retell(plan.differing(rest), outcome="dropped", why=why)
            self._surviving, self._proved, plan = rest, None, rest
        return self._nothing()

    def _nothing(self) -> Tuning:
        """Return that nothing helps; what the user pulled by hand is judged nevertheless."""
        return self._result(*self._prove(Plan()))

    def _after(self, plan: Plan, seen: compare.Confirmation) -> Profile | None:
        """Look at the script under its plan; both profiles get the times of the confirmation.

        None where the script ends before it has been looked at, or the user has seen enough: the
        answer is there without.
        """
        tally, own, other = self._bench.tally, self._options.pulled, self._races.with_pulled(plan)
        try:
            tuned = observe(self._bench, other)
        except (KeyboardInterrupt, *TRIAL_FAILURES):
            return None
        before_s = [pair.baseline_s for pair in seen.pairs]
        self._baseline = retimed(self._baseline, tally, own, before_s)
        return retimed(tuned, tally, other, [pair.candidate_s for pair in seen.pairs])

    def _stopped(self) -> Tuning:
        """Keep the best so far, and say what it lacks; the journal stays for the next time."""
        told = {row.lever for row in self._rows}
        self._rows += [row for row in self._hunt.rows(stopped=True) if row.lever not in told]
        plan = self._hunt.best if self._surviving is None else self._surviving
        lacks = "neither proved nor" if self._proved is None else "proved, but not"
        lost = self._journal is not None and self._journal.lost
        on = "" if lost else " The same command goes on from here."
        self._notes.append(f"Interrupted: the best so far is kept, {lacks} confirmed.{on}")
        return self._result(plan, self._proved or self._unproved(plan), interrupted=True)

    def _unproved(self, plan: Plan) -> Proof:
        return Proof(effect=declared_effect(self._races.with_pulled(plan)))

    # ---- the parts

    def _prove(self, plan: Plan) -> tuple[Plan, Proof]:
        """Return what the gates let through of a plan, and its proof."""
        if not self._races.with_pulled(plan).settings:
            return plan, Proof(effect=Effect.EXACT)
        from upshift.launch.process import best_isolation

        self._bench.clear()
        with Prover(
            self._workload,
            isolation=best_isolation(self._workload.cwd),
            step_s=self._baseline.step_s,
            start_s=self._bench.start_s,
            patience_s=self._options.patience_s,
            parameter_count=int(self._scene.traits.get("model.parameter_count", 0)),
            code=self._code,
            at_once_count=1 if self._bench.lonely else 2,
        ) as prover:
            judge = Judge(
                partial(self._ask, prover),
                self._is_in_time,
                has_pulled=bool(self._options.pulled.settings),
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
        judged = self._races.with_pulled(plan)
        self._view.stage("proof", f"does the script learn the same under {judged}?")
        proof = prover.prove(judged)
        self._band = prover.band
        return proof

    def _blame(self, plan: Plan, judge: Judge) -> None:
        """Say of each lever that had to go why, also where the user ends it in between."""
        self._surviving = judge.plan
        if judge.fails_alone:
            why = f"{self._options.pulled} fails alone"
            self._retell(plan.differing(Plan()), outcome="dropped", why=why)
            return
        for lever, why in judge.rejected.items():
            self._retell(frozenset({lever}), outcome="rejected", why=f"faster, but {why}")
            self._view.known(f"rejected {lever}: {why}")

    def _give_up(self, plan: Plan, failure: Unprovable) -> Plan:
        """Leave every lever out where it is the script itself that cannot be recorded."""
        self._retell(plan.differing(Plan()), outcome="dropped", why="faster, but not proved")
        faster = f"{plan} is faster, but nothing" if plan.settings else "Nothing"
        self._notes.append(f"{faster} can be proved here: {failure}")
        return Plan()

    def _confirm(self, plan: Plan) -> tuple[compare.Confirmation | None, str]:
        """Race the plan on fresh launches; None, and why, where no gain is seen."""
        self._view.stage("confirmation", f"fresh launches: the script against {plan}")
        until_s = self._started_s + self._hunt.end_s - self._costs(plan).observe_s
        try:
            seen = self._races.confirm(plan, until_s=until_s)
        except TRIAL_FAILURES as failure:
            self._bench.clear()
            self._notes.append(f"On fresh launches {plan} was not raced: {failure.last_words}")
            return None, f"not raced on fresh launches: {failure.last_words}"
        if seen.verdict is not Verdict.WIN:
            found = "no gain that can be told from noise"
            self._notes.append(f"On fresh launches {plan} gave {_interval(seen.speedup)}: {found}.")
            return None, "the gain was not seen on fresh launches"
        if seen.stalls:
            why = (
                f"most steps are {times(seen.speedup.mid_ratio)} as fast, but some stall: "
                f"{times(seen.means_ratio)} on average"
            )
            self._notes.append(f"On fresh launches under {plan} {why}.")
            return None, why
        return seen, ""

    def _proven_part(self, plan: Plan) -> Plan:
        """Return the levers that won a race of their own; none if all did, or if it is late."""
        won = frozenset(
            row.lever
            for row in self._rows
            if row.outcome == "kept" and row.speedup is not None and row.speedup.is_gain
        )
        rest = plan.only(won)
        return rest if rest != plan and self._is_in_time(rest) else Plan()

    def _is_in_time(self, plan: Plan) -> bool:
        """Return whether a plan can still be proved and confirmed."""
        answer_s = self._costs(plan).answer_s(effects(plan))
        return self._spent_s() + answer_s <= self._hunt.end_s

    def _payback(self, plan: Plan, speedup: Interval) -> Payback | None:
        """Return when a plan has paid for its start; None where it starts about as early."""
        later_s = self._later_s(plan)
        if later_s is None or later_s < WORTH_SAYING_S:
            return None
        ratio, step_s = speedup.mid_ratio, self._baseline.step_s
        return Payback(
            later_s=later_s, step_s=step_s, speedup_ratio=ratio,
            first_pass_s=self._bench.tally.first_pass_s(
                self._options.pulled, self._races.with_pulled(plan)
            ),
        )  # fmt: skip

    def _later_s(self, plan: Plan) -> float | None:
        return self._bench.tally.later_s(self._options.pulled, self._races.with_pulled(plan))

    def _why_too_late(self, plan: Plan, speedup: Interval) -> str:
        """Say that a plan's start costs more than its steps save; empty where it does not."""
        payback, training_s = self._payback(plan, speedup), self._options.training_s
        if payback is None or training_s is None or payback.is_repaid(training_s):
            return ""
        return search.Stakes(training_s=training_s).too_late(speedup.mid_ratio, payback.later_s)

    def _early_part(self, plan: Plan) -> Plan:
        """Return the levers that do not make the start late."""
        late = blamed(plan, self._hunt.history, later_s=self._later_s(plan) or 0.0)
        return plan.only(frozenset(name for name, _ in plan.settings) - late)

    def _say_what_it_saves(self, plan: Plan, speedup: Interval) -> None:
        """Weigh the gain against the start and the search."""
        payback = self._payback(plan, speedup)
        if payback is not None:
            self._notes.append(payback.says)
        if self._options.training_s is None:
            return
        saved_s = self._options.training_s * (1 - 1 / speedup.mid_ratio)
        saved_s -= payback.later_s if payback else 0.0
        spent_s = self._spent_s()
        self._notes.append(
            f"Of {duration(self._options.training_s)} of training the plan saves about "
            f"{duration(saved_s)}; the search took {duration(spent_s)}."
        )

    def _retell(self, levers: frozenset[str], *, outcome: str, why: str) -> None:
        self._rows = [
            replace(row, outcome=outcome, why=why) if row.lever in levers else row
            for row in self._rows
        ]

    # ---- small things

    def _costs(self, plan: Plan) -> Costs:
        """Return what the parts of this tuning take, with `plan` as the one that is proved."""
        return costs_of(
            self._bench,
            self._baseline,
            self._machine,
            baseline=self._options.pulled,
            candidate=self._races.with_pulled(plan),
        )

    def _spent_s(self) -> float:
        return self._clock() - self._started_s

    def _say_baseline(self) -> None:
        seen = self._baseline
        shares = sorted(
            ((seen.share_ratio(phase), phase) for phase in seen.phase_s if phase.in_step),
            reverse=True,
        )
        parts = ", ".join(f"{phase} {percent(share)}" for share, phase in shares[:3])
        self._view.known(f"{duration(seen.mean_step_s)} a step: {parts}")

    def _result(
        self,
        plan: Plan,
        proof: Proof,
        *,
        tuned: Profile | None = None,
        confirmed: compare.Confirmation | None = None,
        interrupted: bool = False,
    ) -> Tuning:
        order = list(discover())
        return Tuning(
            machine=self._machine,
            workload=self._workload,
            baseline=self._baseline,
            plan=self._races.with_pulled(plan),
            proof=proof,
            cost=Cost(
                wall_s=self._spent_s(),
                launch_count=self._bench.launch_count + self._proof_launches_count,
            ),
            tuned=tuned,
            speedup=confirmed.speedup if confirmed else None,
            means_ratio=confirmed.means_ratio if confirmed else None,
            noise=self._races.noise,
            levers=tuple(sorted(self._rows, key=lambda row: order.index(row.lever))),
            notes=(*self._bench.notes, *self._notes),
            interrupted=interrupted,
            band=self._band if proof.gates else None,
            diagnosis=self._diagnosis,
            races=self._journal.history if self._journal else (),
            confirmed=confirmed_race(plan, confirmed) if confirmed else None,
            traits=self._scene.traits,
        )


def _interval(speedup: Interval) -> str:
    low, high = times(speedup.low_ratio), times(speedup.high_ratio)
    return f"{times(speedup.mid_ratio)} [{low}, {high}]"
