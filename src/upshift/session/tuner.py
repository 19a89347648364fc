"""One tuning, from the first launch to the last pair."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from upshift import compare, search, session
from upshift.lever import Scene, discover, lookup
from upshift.records import Cost, Effect, LeverReport, Plan, Profile, Proof, Tuning
from upshift.session.costs import Costs, costs_of
from upshift.session.knobs import find_knobs, remarks
from upshift.session.observe import observe
from upshift.session.proof import Prover, declared_effect, effects
from upshift.session.races import LEAST_RATIO, Races
from upshift.units import duration, percent, times, whole_minutes

if TYPE_CHECKING:
    from collections.abc import Callable

    from upshift.records import Interval, Workload
    from upshift.session import Options, Watcher

MOST_LAUNCHES_COUNT = 25
_LEAST_RACE_S = 2.0
_RACES_PER_KNOB = 3
_CONFIRM_SHARE = 0.25
_LATE_RATIO = 0.1


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
        self._end_s = self._started_s + options.budget_s
        self._short = False
        self._notes: list[str] = []
        self._rows: list[LeverReport] = []
        self._proof_launches_count = 0

    def tune(self) -> Tuning:
        """Run the whole story.

        Raises:
            ScriptFailed: the script itself does not train.
            KeyboardInterrupt: before there was anything to keep.
        """
        self._view.stage("machine", "reading what this job may use")
        self._machine = session.doctor(self._workload.python)
        with session.open_bench(self._workload, self._options, self._machine) as bench:
            self._bench = bench
            self._view.stage("baseline", "starting the script as it is")
            self._baseline = observe(bench, self._options.pulled)
            self._say_baseline()
            traits = bench.facts(self._options.pulled)["traits"]
            self._scene = Scene(machine=self._machine, baseline=self._baseline, traits=traits)
            self._notes += remarks(self._scene)
            self._races = Races(bench, self._options, self._view, clock=self._clock)
            journal = _open_journal(self._workload, self._fingerprint())
            self._knobs, rows = find_knobs(
                self._scene, self._options, least_ratio=LEAST_RATIO, settled=journal.settings
            )
            self._rows += rows
            if not self._knobs:
                self._notes.append("No lever can reach 2 % here: see why each was left out.")
                journal.path.unlink(missing_ok=True)
                return self._result(Plan(), Proof(effect=Effect.EXACT))
            journal.settle({knob.lever: knob.settings for knob in self._knobs})
            return self._story(journal)

    def _story(self, journal: search.Journal) -> Tuning:
        self._warn_of_a_short_budget(journal)
        try:
            self._view.stage("noise", "the script against itself")
            self._races.measure_noise()
            self._search(journal)
            plan = self._best(journal)
            self._rows += search.rows(
                self._knobs, journal.history, least_ratio=self._races.least_ratio
            )
            result = self._settle(plan)
        except KeyboardInterrupt:
            return self._stopped(journal)
        journal.path.unlink(missing_ok=True)
        return result

    def _settle(self, plan: Plan) -> Tuning:
        """Prove and confirm a plan; where the gain is not seen again, the part that won alone."""
        while plan.settings:
            plan, proof = self._prove(plan)
            if not plan.settings:
                break
            seen = self._confirm(plan)
            if seen is not None:
                tuned = observe(self._bench, self._races.with_pulled(plan))
                return self._result(plan, proof, tuned=tuned, confirmed=seen)
            rest = self._proven_part(plan)
            self._retell(
                plan.differing(rest),
                outcome="dropped",
                why="the gain was not seen on fresh launches",
            )
            plan = rest
        return self._result(Plan(), Proof(effect=Effect.EXACT))

    def _best(self, journal: search.Journal) -> Plan:
        return search.incumbent(self._knobs, journal.history, least_ratio=self._races.least_ratio)

    def _stopped(self, journal: search.Journal) -> Tuning:
        """Keep the best so far, and say what it lacks; the journal stays for the next time."""
        plan = self._best(journal)
        told = {row.lever for row in self._rows}
        self._rows += [
            row
            for row in search.rows(
                self._knobs, journal.history, least_ratio=self._races.least_ratio
            )
            if row.lever not in told
        ]
        self._notes.append(
            "Interrupted: the best so far is kept, neither proved nor confirmed. "
            "The same command goes on from here."
        )
        return self._result(plan, Proof(effect=declared_effect(plan)), interrupted=True)

    # ---- the parts

    def _search(self, journal: search.Journal) -> None:
        if journal.resumed_count:
            self._view.known(f"{journal.resumed_count} races are known from an earlier start")
        races = _RACES_PER_KNOB * len(self._knobs)
        best = self._best(journal)
        spare_s = self._end_s - self._clock() - self._costs(best).answer_s(effects(best))
        confirm_s = min(self._races.confirm_s, max(0.0, _CONFIRM_SHARE * spare_s))
        while proposal := self._propose(journal):
            best = self._best(journal)
            after_s = self._after_s(proposal.candidate, best, confirm_s=confirm_s)
            prepare_s, least_s = self._races.prepare_s(proposal), self._races.least_s(proposal)
            left_s = self._left_s(best, after_s=after_s) - prepare_s
            if left_s < least_s and journal.history:
                needed_s = self._spent_s() + prepare_s + least_s + after_s
                self._notes.append(
                    "The budget ended the search before every lever was tried alone: "
                    f"--budget {whole_minutes(needed_s)} or longer may find more."
                )
                return
            self._view.stage("search", f"{proposal.kind}: {proposal.candidate}")
            share_s = max(_LEAST_RACE_S, 2 * left_s / max(2, races - len(journal.history)))
            journal.append(self._races.race(proposal, share_s, most_s=left_s))

    def _propose(self, journal: search.Journal) -> search.Proposal | None:
        return search.propose(
            self._knobs,
            journal.history,
            least_ratio=self._races.least_ratio,
            launches_left=max(0, MOST_LAUNCHES_COUNT - self._bench.launch_count),
        )

    def _prove(self, plan: Plan) -> tuple[Plan, Proof]:
        """Run the gates; a plan that fails them loses its strongest lever and is tried again."""
        from upshift.launch.process import best_isolation

        self._bench.clear()
        with Prover(
            self._workload,
            isolation=best_isolation(),
            step_s=self._baseline.step_s,
            start_s=self._bench.start_s,
            patience_s=self._options.patience_s,
            parameter_count=int(self._scene.traits.get("model.parameter_count", 0)),
        ) as prover:
            while True:
                if plan.settings:
                    self._view.stage("proof", f"does the script learn the same under {plan}?")
                proof = prover.prove(self._races.with_pulled(plan))
                self._proof_launches_count = prover.launch_count
                if proof.holds or not plan.settings:
                    return plan, proof
                plan = self._reject_one(plan, proof)

    def _reject_one(self, plan: Plan, proof: Proof) -> Plan:
        worst = max(lookup(plan), key=lambda pair: pair[0].effect.severity_index)[0].name
        why = next(gate.says for gate in proof.gates if gate.passed is False)
        self._retell(frozenset({worst}), outcome="rejected", why=f"faster, but {why}")
        self._view.known(f"rejected {worst}: {why}")
        return plan.without(worst)

    def _confirm(self, plan: Plan) -> compare.Confirmation | None:
        """Race the plan on fresh launches; None where no gain is seen."""
        self._view.stage("confirmation", f"fresh launches: the script against {plan}")
        until_s = self._end_s - self._costs(plan).observe_s
        seen = self._races.confirm(plan, until_s=until_s)
        if seen.speedup.is_gain:
            self._say_what_it_saves(seen.speedup)
            return seen
        self._notes.append(
            f"On fresh launches {plan} gave {_interval(seen.speedup)}: "
            "no gain that can be told from noise."
        )
        return None

    def _proven_part(self, plan: Plan) -> Plan:
        """Return the levers that won a race of their own; none if all did, or if it is late."""
        won = frozenset(
            row.lever
            for row in self._rows
            if row.outcome == "kept" and row.speedup is not None and row.speedup.is_gain
        )
        rest = plan.only(won)
        answer_s = self._costs(rest).answer_s(effects(rest))
        return rest if rest != plan and self._clock() + answer_s <= self._end_s else Plan()

    def _say_what_it_saves(self, speedup: Interval) -> None:
        """Weigh the gain against the search, where the user said how long the training runs."""
        if self._options.training_s is None:
            return
        saved_s = self._options.training_s * (1 - 1 / speedup.mid_ratio)
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

    def _after_s(self, candidate: Plan, best: Plan, *, confirm_s: float) -> float:
        """Return the seconds that come after a race, whoever wins it.

        Args:
            candidate: the plan that is raced.
            best: the best plan so far.
            confirm_s: seconds of pairs that the confirmation should have.
        """
        costs = self._costs(candidate)
        answers_s = [costs.answer_s(effects(candidate))]
        if best.settings:
            answers_s.append(self._costs(best).answer_s(effects(best)))
        return max(answers_s) + max(0.0, confirm_s - costs.confirm_pairs_s)

    def _left_s(self, best: Plan, *, after_s: float) -> float:
        """Return the seconds that the search has left, by the best plan that it has found.

        While there is none it goes on for a bit longer: an answer that looked at half of the
        levers is worth less than one that comes late by a tenth.
        """
        if self._short:  # the proof comes late in any case; that has been said
            return 0.0 if best.settings else self._options.budget_s - self._spent_s()
        late_s = 0.0 if best.settings else _LATE_RATIO * self._options.budget_s
        return self._options.budget_s + late_s - self._spent_s() - after_s

    def _spent_s(self) -> float:
        return self._clock() - self._started_s

    def _warn_of_a_short_budget(self, journal: search.Journal) -> None:
        """Say at the beginning that the budget cannot hold a proof, and what could."""
        proposal = self._propose(journal)
        first_s, candidate = 0.0, self._best(journal)
        if proposal is not None and not journal.history:
            first_s = self._races.prepare_s(proposal) + self._races.least_s(proposal)
            candidate = proposal.candidate
        costs = self._costs(candidate)
        needed_s = self._spent_s() + costs.noise_s + first_s
        needed_s += costs.answer_s(effects(candidate))
        if needed_s > self._options.budget_s:
            self._short, self._end_s = True, self._started_s + needed_s
            said = (
                f"A proved answer for this script needs about {duration(needed_s)}, more than the "
                f"budget of {duration(self._options.budget_s)}: the search stops at the first "
                "gain, and its proof comes late."
            )
            self._view.note(said)
            self._notes.append(said)

    def _say_baseline(self) -> None:
        seen = self._baseline
        shares = sorted(
            ((seen.share_ratio(phase), phase) for phase in seen.phase_s if phase.in_step),
            reverse=True,
        )
        parts = ", ".join(f"{phase} {percent(share)}" for share, phase in shares[:3])
        self._view.known(f"{duration(seen.step_s)} a step: {parts}")

    def _fingerprint(self) -> dict[str, object]:
        script = Path(self._workload.cwd, self._workload.argv[0])
        content = script.read_bytes() if script.is_file() else b""
        return {
            "command": list(self._workload.command),
            "cwd": self._workload.cwd,
            "script": hashlib.sha256(content).hexdigest(),
            "cores": self._machine.budget.core_count,
            "cpu": self._machine.cpu.model,
            "torch": str(self._scene.traits.get("torch")),
            "levers": list(discover()),
            "permitted": [
                [sorted(self._options.only), sorted(self._options.skip)],
                [str(self._options.keep), str(self._options.allow)],
            ],
            "pulled": str(self._options.pulled),
        }

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
        )


def _interval(speedup: Interval) -> str:
    low, high = times(speedup.low_ratio), times(speedup.high_ratio)
    return f"{times(speedup.mid_ratio)} [{low}, {high}]"


def _open_journal(workload: Workload, fingerprint: dict[str, object]) -> search.Journal:
    """Open the journal of this command in the user's cache, or in a place that forgets."""
    from upshift.report import archive

    key = hashlib.sha256(repr((workload.command, workload.cwd)).encode()).hexdigest()[:16]
    try:
        return search.Journal.open(archive.folder() / "journals" / f"{key}.jsonl", fingerprint)
    except OSError:
        forgetting = Path(tempfile.mkdtemp(prefix="upshift-")) / "journal.jsonl"
        atexit.register(shutil.rmtree, forgetting.parent, ignore_errors=True)
        return search.Journal.open(forgetting, fingerprint)
