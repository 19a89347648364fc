"""One tuning, from the first launch to the last pair."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from hasten.errors import HastenError, OutOfTime, UsageError
from hasten.lever import discover, sharing_cpus
from hasten.records import LEAST_RATIO, Cost, Diagnosis, Outcome, Reason, Tuning
from hasten.search.costs import refuse_too_short
from hasten.session import setup
from hasten.session.decisions import Decisions, Lost
from hasten.session.measured_costs import costs_of, first_costs
from hasten.session.races import Races, confirmed_race
from hasten.session.search_driver import SearchDriver
from hasten.session.settlement import Answer, Settlement
from hasten.session.watching import notes_of, watch, with_findings
from hasten.trials.blocks import patience_s
from hasten.trials.compiled_code import CompiledCode, is_handed_out
from hasten.trials.deadline import Deadline
from hasten.units import times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hasten.records import LeverReport, Plan, Proof, Workload
    from hasten.search.costs import Costs
    from hasten.session.options import Options, Watcher
    from hasten.session.watching import Watched
    from hasten.trials.runner import TrialRunner

_END_S, _END_SHARE = 1.0, 0.02


def _gain(found: Tuning) -> float:
    """Return the speed-up of the whole training that was confirmed; 1 for none."""
    seen = found.passes.whole if found.passes else found.speedup
    return seen.mid_ratio if seen else 1.0


def _in_order(rows: Iterable[LeverReport]) -> tuple[LeverReport, ...]:
    order = list(discover())
    return tuple(sorted(rows, key=lambda row: order.index(row.lever)))


def _kept(first: Tuning, driver: SearchDriver, decisions: Decisions) -> Tuning:
    """Return a first answer with what the search has found out since about other levers."""
    rows = {row.lever: row for row in (*driver.rows(), *decisions.rows)}
    for lever, row in rows.items():
        if row.outcome is Outcome.KEPT:
            why = f"{row.why}; no plan with it was confirmed to be faster than the first answer"
            rows[lever] = replace(row, outcome=Outcome.DROPPED, why=why, reason=None)
    rows |= {row.lever: row for row in first.levers if row.lever in first.plan.levers}
    return replace(first, races=driver.history, levers=_in_order(rows.values()))


class TuningSession:
    """The time and the parts of one tuning; `tune` runs it once."""

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
        # Children will have to end, and reports to be written: that is of the user's budget, too.
        end_s = min(_END_S, _END_SHARE * options.budget_s)
        self._started_s = clock() - options.spent_s - end_s
        self._deadline = Deadline(self._started_s + options.budget_s, clock=clock)

    def tune(self) -> Tuning:
        """Run it from the first launch to the last pair.

        Raises:
            ScriptFailed: the script itself does not train.
            UsageError: the budget is too short for an answer.
            KeyboardInterrupt: the user stopped it before there was anything to keep.
        """
        self._view.stage("machine", "reading what this job may use")
        workload, options, view, deadline = (
            self._workload, self._options, self._view, self._deadline,
        )  # fmt: skip
        found: Tuning | None = None
        kept = setup.kept_code(workload)
        with (
            suppress(KeyboardInterrupt),  # while the children end: there is an answer
            setup.MachineSurvey(workload.python, patience_s=deadline.left_s) as survey,
            CompiledCode(kept) as code,
            setup.open_runner(workload, options, survey.machine, code, deadline=deadline) as runner,
        ):
            runner.starts.is_kept = is_handed_out(kept)
            watched = self._watch(runner, survey)
            self._runner, self._watched = runner, watched
            self._decisions = Decisions(rows=[*watched.left_out])
            self._decisions.notes += watched.notes
            self._races = Races(
                runner, options, view, fault_s=watched.diagnosis.fault_s, clock=self._clock
            )
            self._driver = SearchDriver(
                watched.candidates, watched.journal, races=self._races, options=options, view=view,
                costs=self._costs, spent_s=self._spent_s, note=self._decisions.notes.append,
                deadline=deadline, doubtful=self._doubtful,
            )  # fmt: skip
            self._settlement = Settlement(
                workload, options, view, watched, runner=runner, races=self._races,
                decisions=self._decisions, code=code, deadline=deadline, costs=self._costs,
                without=self._without,
            )  # fmt: skip
            found = self._search()
            if self._driver.passed_over and not found.interrupted:
                found = replace(found, notes=(self._driver.passed_over, *found.notes))
            if patience_s(found.plan):
                code.kept = kept
        if found is None:
            raise KeyboardInterrupt
        return found

    def _watch(self, runner: TrialRunner, survey: setup.MachineSurvey) -> Watched:
        try:
            return watch(
                self._workload, self._options, self._view, runner, survey, spent_s=self._spent_s
            )
        except OutOfTime:
            costs = first_costs(runner, self._spent_s())
            try:
                refuse_too_short(self._options.budget_s, self._spent_s(), costs)
            except UsageError as refused:
                raise with_findings(refused, Diagnosis(), survey.machine) from None
            raise

    def _search(self) -> Tuning:
        self._races.know(self._watched.journal.history)
        try:
            self._driver.check_the_budget()
        except UsageError as refused:
            raise with_findings(refused, self._watched.diagnosis, self._watched.machine) from None
        try:
            if self._driver.best.settings or not self._driver.is_over:
                self._races.measure_noise(quickly=self._driver.hurried)
            result = self._answer()
            due_s = self._driver.end_s
            if not self._races.interrupted:
                if self._driver.goes_on(result):
                    result = self._better(result)
                elif self._driver.end_s > due_s:
                    result = _kept(result, self._driver, self._decisions)
            self._watched.journal.forget()
            return result
        except KeyboardInterrupt:
            return self._stopped(interrupted=True)
        except OutOfTime:
            return self._stopped()
        finally:
            self._watched.journal.close()

    def _answer(self) -> Tuning:
        """Search, then prove and confirm what was found."""
        self._driver.run()
        self._decisions.searched(self._driver.rows())
        end_s = self._started_s + self._driver.end_s
        found = self._settlement.settle(self._driver.best, end_s=end_s)
        return self._result(found)

    def _better(self, first: Tuning) -> Tuning:
        """Go on from a first answer, which is kept unless a better one is confirmed in time.

        Raises:
            KeyboardInterrupt: the user stopped it: nothing is confirmed, but something is faster.
            OutOfTime: the budget has ended, and the same holds.
        """
        second = first
        message = "no gain is confirmed: the search goes on while worthwhile; Ctrl-C ends it"
        if first.speedup is not None:
            message = (
                f"first answer: {times(_gain(first))} by {first.plan}; "
                "the search goes on while worthwhile; Ctrl-C keeps this answer"
            )
        self._view.known(message)
        self._begin_again()
        try:
            self._driver.run()
            if self._driver.has_other(first):
                self._begin_again()
                second = self._answer()
        except (KeyboardInterrupt, OutOfTime):
            if first.speedup is None and self._driver.best.settings:
                raise
        except (HastenError, OSError):  # such as a full disk
            pass
        # The larger of two figures flatters itself: one that is hardly larger is no better.
        if _gain(second) >= (1.0 + LEAST_RATIO) * _gain(first):
            return second
        return replace(_kept(first, self._driver, self._decisions), cost=self._cost)

    def _begin_again(self) -> None:
        """Forget what a first answer says of levers that are still searched."""
        self._settlement.surviving = self._settlement.proved = None
        self._decisions.reopen(self._driver.rows())
        self._decisions.notes[:] = self._watched.notes

    def _stopped(self, *, interrupted: bool = False) -> Tuning:
        """Keep the best so far, and say what it lacks; the journal stays for the next time."""
        self._decisions.stopped(self._driver.rows(stopped=True))
        plan, proof = self._unconfirmed()
        lacks = "proved, but not" if proof.gates else "neither proved nor"
        on = "" if self._watched.journal.lost else " The same command goes on from here."
        why = "Interrupted" if interrupted else "The budget is spent"
        none = "nothing beyond what you set" if self._options.applied.settings else "nothing"
        kept = f"the best so far is kept, {lacks} confirmed" if plan.settings else f"{none} is kept"
        self._decisions.notes.append(f"{why}: {kept}.{on}")
        seen = self._result(Answer(plan=plan, proof=proof, baseline=self._watched.baseline))
        return replace(seen, interrupted=interrupted, out_of_time=not interrupted)

    def _unconfirmed(self) -> tuple[Plan, Proof]:
        """Return the best plan so far and its proof, without levers whose gain may not last."""
        settlement = self._settlement
        plan = self._driver.best if settlement.surviving is None else settlement.surviving
        rest, doubts = plan, dict(self._doubtful(plan))
        unsure = self._driver.guesses | sharing_cpus(self._decisions.unshown(plan)).levers
        doubts["its race did not settle that"] = plan.only(unsure)
        for why, levers in doubts.items():
            lost = Lost(Reason.NOT_RACED_AGAIN, f"faster, but {why}, and was not confirmed")
            self._decisions.lose(levers.levers, Outcome.DROPPED, lost)
            rest = rest.only(rest.differing(levers))
        if rest == plan and settlement.proved is not None:
            return plan, settlement.proved
        return rest, settlement.unproved(rest)

    def _doubtful(self, plan: Plan) -> Mapping[str, Plan]:
        """Return, by the reason, the levers of a plan that stay only where it is confirmed."""
        found = {"it starts later": self._options.unrepaid(plan)}
        if self._watched.diagnosis.is_contended:
            found["only beside other processes"] = sharing_cpus(plan)
        return {why: levers for why, levers in found.items() if levers.settings}

    def _without(self, plan: Plan, levers: frozenset[str]) -> Plan:
        """Return the best plan that the search knows in place of one, without some levers.

        What a gate has rejected is not in that plan any more, and does not come back.
        """
        rejected = self._driver.best.levers - plan.levers
        best = self._driver.leave(levers | rejected)
        self._decisions.searched(self._driver.rows())
        return best

    def _costs(self, plan: Plan) -> Costs:
        """Return what the parts of this tuning take, with `plan` as the one that is proved."""
        return costs_of(
            self._runner, self._watched.baseline, self._watched.machine,
            baseline=self._options.applied, candidate=self._options.with_applied(plan),
            proved=self._options.judged(plan),
        )  # fmt: skip

    @property
    def _cost(self) -> Cost:
        launch_count = self._runner.children.launch_count + self._settlement.launch_count
        return Cost(wall_s=self._spent_s(), launch_count=launch_count)

    def _spent_s(self) -> float:
        return self._clock() - self._started_s

    def _result(self, found: Answer) -> Tuning:
        confirmed = found.confirmed
        return Tuning(
            machine=self._watched.machine,
            workload=self._workload,
            baseline=found.baseline,
            plan=self._options.with_applied(found.plan),
            proof=found.proof,
            cost=self._cost,
            tuned=found.tuned,
            speedup=confirmed.speedup if confirmed else None,
            means_ratio=confirmed.means_ratio if confirmed else None,
            noise=self._races.noise,
            levers=_in_order(self._decisions.rows),
            notes=(*notes_of(self._runner, found.baseline), *self._decisions.notes),
            envelope=self._settlement.envelope if found.proof.gates else None,
            diagnosis=self._watched.diagnosis,
            races=self._watched.journal.history,
            confirmed=confirmed_race(found.plan, confirmed) if confirmed else None,
            traits=self._watched.context.traits,
            assumed=tuple(sorted(self._options.assumed)),
            passes=found.passes,
            applied=self._options.applied,
        )
