"""Which gates judge a plan, and what they show together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.errors import TRIAL_FAILURES
from hasten.lever import lookup
from hasten.records import REPEATABLE, STRUCTURE, Effect, Gate, Phase, Plan, Proof
from hasten.verify import distribution, gates, precision
from hasten.verify.distances import alike
from hasten.verify.loss_envelope import envelope_of
from hasten.verify.proof_runs import (
    FLOORS_COUNT,
    ONE_BIT,
    ProofRuns,
    declared_effect,
    effects,
    epsilon_ratio,
)

if TYPE_CHECKING:
    from hasten.records import LossEnvelope
    from hasten.verify.proof_runs import RunRecorder
    from hasten.verify.recorded_run import RecordedRun

_CLEAR_LOW, _CLEAR_HIGH = 5.0, 1000.0


def _without(plan: Plan, effect: Effect) -> Plan:
    return Plan(tuple((lever.name, s) for lever, s in lookup(plan) if lever.effect is not effect))


class Prover:
    """Record the script once, then judge plans against it.

    Args:
        recorder: launches the script and records it.
        step_s: seconds of a step, which decides how many are recorded.
        parameter_count: numbers in the model, which decides for how many steps its weights are
            kept.
    """

    def __init__(self, recorder: RunRecorder, *, step_s: float, parameter_count: int) -> None:
        self._recorder = recorder
        self._runs = ProofRuns(recorder, step_s=step_s, parameter_count=parameter_count)
        self._step_s = step_s

    @property
    def launch_count(self) -> int:
        """Runs so far."""
        return self._recorder.launch_count

    @property
    def envelope(self) -> LossEnvelope | None:
        """What a real run is held against, once a plan has been judged."""
        return envelope_of(self._recorder.health, step_s=self._step_s)

    def prove(self, plan: Plan) -> Proof:
        """Return what the gates say of `plan`.

        Raises:
            Unprovable: the script fails even without the plan when its steps are recorded.
            OutOfTime: the deadline has passed.
        """
        declared = declared_effect(plan)
        if not plan.settings:
            return Proof(effect=Effect.EXACT)
        try:
            return self._judge(plan)
        except TRIAL_FAILURES as failure:
            gate = Gate(name=STRUCTURE, passed=False, message=failure.last_words)
            return Proof(effect=declared, gates=(gate,))

    def _judge(self, plan: Plan) -> Proof:
        if declared_effect(plan) is Effect.EXACT and self._runs.baseline is None:
            proof = self._equal_at_once(plan)
            if proof is not None:
                return proof
        first, second, candidate = self._runs.needed(plan)
        proof = self._compare(plan, first, second, candidate)
        return gates.show_losses(proof, first, candidate)

    def _equal_at_once(self, plan: Plan) -> Proof | None:
        """Record the script and a plan that claims its bits side by side: equal runs prove both.

        Two launches that agree show that the script repeats itself, too, so a second one of the
        script alone is needed only where they differ.
        """
        first, candidate = self._runs.side_by_side(plan)
        if not (candidate.equals(first) and candidate.draws_like(first)):
            return None
        shown = (
            gates.repeatable(candidate, first),
            gates.same_structure(first, candidate, redraws=False),
            gates.same_bits(first, candidate, drawn_alike=True),
        )
        return gates.show_losses(Proof(effect=Effect.EXACT, gates=shown), first, candidate)

    def _compare(
        self, plan: Plan, first: RecordedRun, second: RecordedRun, candidate: RecordedRun
    ) -> Proof:
        declared, asked = declared_effect(plan), effects(plan)
        repeats = self._runs.repeats or gates.repeatable(first, second)
        varies = first.batches != second.batches
        redraws = varies or (Effect.DISTRIBUTION in asked and candidate.batches != first.batches)
        structure = gates.same_structure(first, candidate, redraws=redraws, again=second)
        drawn_alike = candidate.draws_like(first) or not second.draws_like(first)
        is_equal = drawn_alike and candidate.equals(first)
        if is_equal or (declared is Effect.EXACT and repeats.passed):
            bits = gates.same_bits(first, candidate, drawn_alike=drawn_alike)
            return Proof(effect=Effect.EXACT, gates=(repeats, structure, bits))
        if structure.passed is False:
            structure = self._structure(first, second, candidate, redraws=redraws)
        shown = [repeats, structure]
        if redraws and not (varies and distribution.same_law(first, second).passed is False):
            shown.append(distribution.same_law(first, candidate))
        if structure.passed is False:  # what follows compares step by step
            return Proof(effect=declared, gates=tuple(shown))
        if Effect.PRECISION in asked:
            shown += self._precision(plan, first, candidate)
        elif Effect.DISTRIBUTION in asked:
            shown += self._redraw(plan, first, candidate)
        else:
            shown += self._rounding(first, candidate)
        same_draws = not redraws and candidate.draws_like(first)
        effect = Effect.ROUNDING if declared is Effect.DISTRIBUTION and same_draws else declared
        return Proof(effect=effect, gates=tuple(shown))

    def _structure(
        self, first: RecordedRun, second: RecordedRun, candidate: RecordedRun, *, redraws: bool
    ) -> Gate:
        """G1 where counts may depend on values: do they also differ with one bit changed?"""
        for count in (1, FLOORS_COUNT):
            counts = gates.only_counts_differ(first, candidate, redraws=redraws)
            shaken = self._runs.floors(ONE_BIT, count) if counts else []
            gate = gates.same_structure(
                first, candidate, redraws=redraws, again=second, shaken=shaken
            )
            if gate.passed is not False or not counts:
                break
        return gate

    def _rounding(self, first: RecordedRun, candidate: RecordedRun) -> list[Gate]:
        """G3 by one floor run; by three where one does not decide."""
        for count in (1, FLOORS_COUNT):
            floors = self._runs.floors(ONE_BIT, count)
            own, other, *shaken = alike(first, candidate, *floors)
            if not own.step_count:
                return [gates.by_spread(first, candidate, floors)]
            gate = gates.within_floor(own, other, shaken)
            ratio = gate.distance_ratio or 0.0
            if ratio >= _CLEAR_HIGH or (gate.passed is True and ratio <= _CLEAR_LOW):
                break
        if not self._runs.varies:
            return [gate]
        return [gates.resolved(gate, own, shaken), precision.same_update(own, other, shaken)]

    def _update(self, first: RecordedRun, candidate: RecordedRun) -> list[Gate]:
        """G3 for the optimizer alone, as far as the runs follow the same course."""
        own, other, *shaken = alike(first, candidate, *self._runs.floors(ONE_BIT, 1))
        return [precision.same_update(own, other, shaken)] if own.step_count else []

    def _redraw(self, plan: Plan, first: RecordedRun, candidate: RecordedRun) -> list[Gate]:
        """Compare on the script's batches; where the model draws, with its runs of other seeds."""
        if not candidate.fed_step_count and candidate.batches != first.batches:
            message = "batches cannot be kept here: training on the new ones was not compared"
            shown = [Gate(name="G3 draws", passed=None, message=message)]
        else:
            own, other = alike(first, candidate)
            count = len(own.losses) or None  # all draws, where the runs part at once
            if own.model_draws[:count] == other.model_draws[:count]:
                return self._rounding(first, candidate)
            own, other, *others = alike(own, other, *self._runs.other_draws())
            if not own.step_count:
                return [gates.by_spread(first, candidate, self._runs.other_draws())]
            shown = [distribution.within_draws(own, other, others), *self._update(own, other)]
        rest = _without(plan, Effect.DISTRIBUTION)
        if rest.settings:
            shown += self._rounding(first, self._runs.under(rest))
        return shown

    def _precision(self, plan: Plan, first: RecordedRun, candidate: RecordedRun) -> list[Gate]:
        """Prove the other levers without the narrowing ones, and the latter by a wider floor."""
        rest, epsilon = _without(plan, Effect.PRECISION), epsilon_ratio(plan)
        shown: list[Gate] = []
        if rest.settings:
            proof = self._judge(rest)
            shown += [gate for gate in proof.gates if _is_news(gate)]
        if Effect.DISTRIBUTION in effects(plan) and first.model_draws != candidate.model_draws:
            still = _without(plan, Effect.DISTRIBUTION)
            candidate = self._runs.under(still, feeds=True)
        floors = self._runs.floors(epsilon, 1)
        own, other, *wide = alike(first, candidate, *floors)
        if not own.step_count:
            return [*shown, gates.by_spread(first, candidate, floors)]
        gate = precision.within_precision(
            own, other, wide, epsilon_ratio=epsilon, varies=self._runs.varies
        )
        if self._runs.varies:
            gate = gates.resolved(gate, own, self._runs.floors(ONE_BIT, 1))
        shown.append(gate)
        phases = [lv.phases for lv, _ in lookup(plan) if lv.effect is Effect.PRECISION]
        if not any(Phase.OPTIMIZER in part for part in phases):
            shown += self._update(own, other)
        return shown


def _is_news(gate: Gate) -> bool:
    """Return whether a gate of a part of a plan says more than the same gate of the whole."""
    return gate.passed is False or gate.name not in (REPEATABLE, STRUCTURE)
