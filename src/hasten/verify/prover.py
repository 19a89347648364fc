"""Which recorded runs a plan needs, which gates judge them, and what they show together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from hasten.errors import TRIAL_FAILURES
from hasten.lever import lookup
from hasten.protocol import RecordingSpec
from hasten.records import Effect, Gate, Phase, Plan, Proof
from hasten.verify import distribution, gates, learning, precision
from hasten.verify.distances import alike
from hasten.verify.loss_envelope import envelope_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from hasten.records import LossEnvelope
    from hasten.verify.recorded_run import RecordedRun

_RECORDED_COUNT, _SLOW_RECORDED_COUNT, _SLOW_STEP_S = 32, 16, 5.0
_FLOORS_COUNT, _OTHER_SEEDS_COUNT = 3, 2
_FORCED_LEAST_COUNT, _FORCED_COUNT, _FORCED_MOST_COUNT = 2, 8, 24
_FORCED_SHARE = 0.75
_TAUGHT_BYTES, _EVIDENCE_BYTES = 1 << 28, 1 << 27
_ONE_BIT = 2.0**-23
_CLEAR_LOW, _CLEAR_HIGH = 5.0, 1000.0


class RunRecorder(Protocol):
    """Whoever launches the script and records its first steps.

    Attributes:
        teacher: the folder where the first run of the script leaves its weights, batches and
            gradients for the others.
        teaching_run: the run that left them; None before.
        health: of each run of the script that could teach, its losses and gradients.
        launch_count: runs so far.
    """

    teacher: str
    teaching_run: RecordedRun | None
    health: list[Mapping[str, Any]]
    launch_count: int

    def record(self, asked: Sequence[tuple[Plan, RecordingSpec]]) -> list[RecordedRun]:
        """Record runs, in any order.

        Raises:
            Unprovable: the script as it is cannot be recorded.
        """

    def forget(self) -> None:
        """Empty the folder of what the first run left."""


def declared_effect(plan: Plan) -> Effect:
    """Return the most that the levers of a plan say they do."""
    return Effect.worst(*effects(plan))


def effects(plan: Plan) -> frozenset[Effect]:
    """Return what the levers of a plan say they do, each."""
    return frozenset(lever.effect for lever, _ in lookup(plan))


def recorded_count(step_s: float) -> int:
    """Return the steps that each run of a proof records."""
    return _RECORDED_COUNT if step_s < _SLOW_STEP_S else _SLOW_RECORDED_COUNT


def wave_count(effects: Collection[Effect]) -> int:
    """Return how many times two runs go on at once in a proof that needs no second attempt.

    What claims equal bits runs beside the script, once. Else the script runs twice, then the plan
    beside the script with one bit changed. What redraws needs two more under other seeds. What
    also redraws or narrows is recorded once more without that; what learns otherwise is run under
    five seeds.

    Args:
        effects: those of the levers in the plan.

    >>> wave_count({Effect.EXACT}), wave_count({Effect.ROUNDING, Effect.DISTRIBUTION})
    (1, 4)
    """
    asked = set(effects) - {Effect.EXACT}
    count = 1 if not asked else 2 + bool(asked - {Effect.ROUNDING}) + (Effect.PRECISION in asked)
    if Effect.DISTRIBUTION in asked and asked != {Effect.DISTRIBUTION}:
        count += 1
    return count + (learning.LEAST_PAIRS_COUNT if Effect.LEARNING in asked else 0)


def _without(plan: Plan, effect: Effect) -> Plan:
    return Plan(tuple((lever.name, s) for lever, s in lookup(plan) if lever.effect is not effect))


def _epsilon_ratio(plan: Plan) -> float:
    precise = [pair for pair in lookup(plan) if pair[0].effect is Effect.PRECISION]
    return max(lever.epsilon_ratio(setting) for lever, setting in precise)


def _forced_count(step_count: int, parameter_count: int) -> int:
    """Return how many steps can be taught: their weights and gradients need room.

    >>> _forced_count(32, 1000), _forced_count(32, 4_000_000), _forced_count(32, 10**9)
    (24, 8, 2)
    """
    weights_bytes = 4 * max(1, parameter_count)
    many = min(_FORCED_MOST_COUNT, _EVIDENCE_BYTES // (2 * weights_bytes))
    most = min(_TAUGHT_BYTES // weights_bytes, max(_FORCED_COUNT, many))
    return max(_FORCED_LEAST_COUNT, min(most, int(_FORCED_SHARE * step_count)))


class Prover:
    """Record the script once, then judge plans against it.

    Args:
        runs: records them.
        step_s: seconds of a step, which decides how many are recorded.
        parameter_count: numbers in the model, which decides for how many steps its weights are
            kept.
    """

    def __init__(self, runs: RunRecorder, *, step_s: float, parameter_count: int) -> None:
        self._runs = runs
        step_count = recorded_count(step_s)
        forced_count = _forced_count(step_count, parameter_count)
        self._take = RecordingSpec(
            step_count=step_count, forced_count=forced_count, teacher=runs.teacher
        )
        self._first: RecordedRun | None = None
        self._baseline: tuple[RecordedRun, RecordedRun] | None = None
        self._repeats: Gate | None = None
        self._keeps = False
        self._step_s = step_s
        self._known: dict[tuple[Plan, RecordingSpec], RecordedRun] = {}

    @property
    def launch_count(self) -> int:
        """Runs so far."""
        return self._runs.launch_count

    @property
    def envelope(self) -> LossEnvelope | None:
        """What a real run is held against, once a plan has been judged."""
        return envelope_of(self._runs.health, step_s=self._step_s)

    def prove(self, plan: Plan) -> Proof:
        """Return what the gates say of `plan`.

        Raises:
            Unprovable: the script fails without the plan, too, where its steps are recorded.
            OutOfTime: the deadline has passed.
        """
        declared = declared_effect(plan)
        if not plan.settings:
            return Proof(effect=Effect.EXACT)
        try:
            judge = self._judge_learning if declared is Effect.LEARNING else self._judge
            return judge(plan)
        except TRIAL_FAILURES as failure:
            gate = Gate(name=gates.STRUCTURE, passed=False, message=failure.last_words)
            return Proof(effect=declared, gates=(gate,))

    # ---- the same training

    def _judge(self, plan: Plan) -> Proof:
        if declared_effect(plan) is Effect.EXACT and self._baseline is None:
            proof = self._equal_at_once(plan)
            if proof is not None:
                return proof
        first, second, candidate = self._needed(plan)
        proof = self._compare(plan, first, second, candidate)
        return gates.show_losses(proof, first, candidate)

    def _equal_at_once(self, plan: Plan) -> Proof | None:
        """Record the script and a plan that claims its bits side by side: equal runs prove both.

        Two launches that agree show that the script repeats itself, too, so a second one of the
        script alone is needed only where they differ.
        """
        keeping = replace(self._take, teacher=None)
        if self._first is None:
            self._first, candidate = self._runs.record([(Plan(), keeping), (plan, keeping)])
        else:
            (candidate,) = self._runs.record([(plan, keeping)])
        if not candidate.equals(self._first):
            return None
        shown = [
            gates.repeatable(self._first, candidate),
            gates.same_structure(self._first, candidate, redraws=False),
            gates.same_bits(self._first, candidate),
        ]
        return gates.show_losses(gates.prove(Effect.EXACT, shown), self._first, candidate)

    def _compare(
        self, plan: Plan, first: RecordedRun, second: RecordedRun, candidate: RecordedRun
    ) -> Proof:
        declared, asked = declared_effect(plan), effects(plan)
        repeats = self._repeats or gates.repeatable(first, second)
        varies = first.batches != second.batches
        redraws = varies or (Effect.DISTRIBUTION in asked and candidate.batches != first.batches)
        shown = [repeats, gates.same_structure(first, candidate, redraws=redraws, again=second)]
        if candidate.equals(first):
            shown.append(gates.same_bits(first, candidate))
            return gates.prove(Effect.EXACT, shown)
        if declared is Effect.EXACT and repeats.passed:
            return gates.prove(declared, [*shown, gates.same_bits(first, candidate)])
        if shown[-1].passed is False:
            shown[-1] = self._structure(first, second, candidate, redraws=redraws)
        if redraws and not (varies and distribution.same_law(first, second).passed is False):
            shown.append(distribution.same_law(first, candidate))
        if shown[1].passed is False:  # what follows compares step by step
            return gates.prove(declared, shown)
        if Effect.PRECISION in asked:
            shown += self._precision(plan, first, candidate)
        elif Effect.DISTRIBUTION in asked:
            shown += self._redraw(plan, first, candidate)
        else:
            shown += self._rounding(first, candidate)
        same_draws = not redraws and _draw_alike(first, candidate)
        effect = Effect.ROUNDING if declared is Effect.DISTRIBUTION and same_draws else declared
        return gates.prove(effect, shown)

    def _structure(
        self, first: RecordedRun, second: RecordedRun, candidate: RecordedRun, *, redraws: bool
    ) -> Gate:
        """G1 where counts may depend on values: do they differ where one bit does, too?"""
        for count in (1, _FLOORS_COUNT):
            counts = gates.only_counts_differ(first, candidate, redraws=redraws)
            shaken = self._floors(_ONE_BIT, count) if counts else ()
            gate = gates.same_structure(
                first, candidate, redraws=redraws, again=second, shaken=shaken
            )
            if gate.passed is not False or not counts:
                break
        return gate

    def _rounding(self, first: RecordedRun, candidate: RecordedRun) -> list[Gate]:
        """G3 by one floor run; by three where one does not decide."""
        for count in (1, _FLOORS_COUNT):
            floors = self._floors(_ONE_BIT, count)
            own, other, *shaken = alike(first, candidate, *floors)
            if not own.step_count:
                return [gates.by_spread(first, candidate, floors)]
            gate = gates.within_floor(own, other, shaken)
            ratio = gate.distance_ratio or 0.0
            if ratio >= _CLEAR_HIGH or (gate.passed is True and ratio <= _CLEAR_LOW):
                break
        if not self._varies:
            return [gate]
        return [gates.resolved(gate, own, shaken), precision.same_update(own, other, shaken)]

    def _update(self, first: RecordedRun, candidate: RecordedRun) -> list[Gate]:
        """G3 for the optimizer alone, as far as the runs go the same way."""
        own, other, *shaken = alike(first, candidate, *self._floors(_ONE_BIT, 1))
        return [precision.same_update(own, other, shaken)] if own.step_count else []

    def _redraw(self, plan: Plan, first: RecordedRun, candidate: RecordedRun) -> list[Gate]:
        """Compare on the batches of the script as it is; where the model draws, with its seeds."""
        if not candidate.fed_step_count and candidate.batches != first.batches:
            message = "batches cannot be kept here: training on the new ones was not compared"
            shown = [Gate(name="G3 draws", passed=None, message=message)]
        else:
            own, other = alike(first, candidate)
            if own.model_draws[: len(own.losses)] == other.model_draws[: len(own.losses)]:
                return self._rounding(own, other)
            own, other, *others = alike(own, other, *self._others())
            if not own.step_count:
                return [gates.by_spread(first, candidate, self._others())]
            shown = [distribution.within_draws(own, other, others), *self._update(own, other)]
        rest = _without(plan, Effect.DISTRIBUTION)
        if rest.settings:
            shown += self._rounding(first, self._record(rest, self._take))
        return shown

    def _precision(self, plan: Plan, first: RecordedRun, candidate: RecordedRun) -> list[Gate]:
        """Prove the other levers without the narrow ones, and these by a floor of their own."""
        rest, epsilon_ratio = _without(plan, Effect.PRECISION), _epsilon_ratio(plan)
        shown: list[Gate] = []
        if rest.settings:
            proof = self._judge(rest)
            shown += [gate for gate in proof.gates if _is_news(gate)]
        if Effect.DISTRIBUTION in effects(plan) and first.model_draws != candidate.model_draws:
            still = _without(plan, Effect.DISTRIBUTION)
            candidate = self._record(still, replace(self._take, feeds=True))
        floors = self._floors(epsilon_ratio, 1)
        own, other, *wide = alike(first, candidate, *floors)
        if not own.step_count:
            return [*shown, gates.by_spread(first, candidate, floors)]
        gate = precision.within_precision(
            own, other, wide, epsilon_ratio=epsilon_ratio, varies=self._varies
        )
        if self._varies:
            gate = gates.resolved(gate, own, self._floors(_ONE_BIT, 1))
        shown.append(gate)
        phases = [lv.phases for lv, _ in lookup(plan) if lv.effect is Effect.PRECISION]
        if not any(Phase.OPTIMIZER in part for part in phases):
            shown += self._update(own, other)
        return shown

    # ---- another algorithm

    def _judge_learning(self, plan: Plan) -> Proof:
        """Run the script under several seeds as it is and under the plan."""
        take = replace(self._take, forced_count=0, teacher=None)
        takes = [replace(take, shift=shift) for shift in range(learning.LEAST_PAIRS_COUNT)]
        asked = [(trial, one) for one in takes for trial in (Plan(), plan)]
        runs = self._record_all(asked)
        sample_count = learning.common_sample_count(runs)
        ends = [learning.final_loss(run, sample_count) for run in runs]
        shown = [learning.no_worse(list(zip(ends[::2], ends[1::2], strict=True)))]
        rest = _without(plan, Effect.LEARNING)
        if rest.settings:
            shown += self._judge(rest).gates
        return gates.show_losses(gates.prove(Effect.LEARNING, shown), runs[0], runs[1])

    # ---- the runs

    def _needed(self, plan: Plan) -> tuple[RecordedRun, RecordedRun, RecordedRun]:
        """Record the script twice, then the plan and a floor."""
        asked = effects(plan)
        feeds = bool(asked & {Effect.DISTRIBUTION, Effect.PRECISION})
        first, second = self._untouched(keeps=feeds)
        wanted = [(plan, replace(self._take, feeds=feeds or self._varies))]
        if Effect.PRECISION in asked:
            wanted.append((Plan(), replace(self._take, perturb_ratio=_epsilon_ratio(plan))))
        elif declared_effect(plan) is not Effect.EXACT:
            wanted.append((Plan(), replace(self._take, perturb_ratio=_ONE_BIT)))
        return first, second, self._record_all(wanted)[0]

    @property
    def _varies(self) -> bool:
        """The script does not repeat itself."""
        return self._repeats is not None and self._repeats.passed is None

    def _untouched(self, *, keeps: bool) -> tuple[RecordedRun, RecordedRun]:
        """Return two runs of the script as it is, first that which teaches the others.

        One that does not repeat itself gives its batches and gradients to all others: then they
        differ by what is left, and the optimizer by nothing.
        """
        if self._baseline is None or (keeps and not self._keeps):
            self._keeps = keeps
            keeping = replace(self._take, teacher=None, keeps=keeps)
            if self._first is None or keeps:
                self._known.clear()  # what was kept for another plan is not enough for this one
                self._runs.forget()
                first, second = self._runs.record([(Plan(), keeping)] * 2)
            else:
                first, (second,) = self._first, self._runs.record([(Plan(), keeping)])
            taught = second is self._runs.teaching_run
            self._baseline = (second, first) if taught else (first, second)
            if not self._varies:
                self._repeats = gates.repeatable(*self._baseline)
            self._take = replace(self._take, feeds=self._varies)
            if self._varies and not keeps:
                return self._untouched(keeps=True)
        return self._baseline

    def _floors(self, ratio: float, count: int) -> tuple[RecordedRun, ...]:
        """Return runs with weights perturbed; more of a script that differs by itself, too."""
        take = replace(self._take, perturb_ratio=ratio)
        seeds = range(1, (_FLOORS_COUNT if self._varies else count) + 1)
        return tuple(self._record_all([(Plan(), replace(take, perturb_seed=s)) for s in seeds]))

    def _others(self) -> list[RecordedRun]:
        """Return the script on the same batches from the same weights, under other seeds."""
        take = replace(self._take, feeds=True)
        seeds = range(1, _OTHER_SEEDS_COUNT + 1)
        return self._record_all([(Plan(), replace(take, reseed=seed)) for seed in seeds])

    def _record(self, plan: Plan, take: RecordingSpec) -> RecordedRun:
        return self._record_all([(plan, take)])[0]

    def _record_all(self, asked: Sequence[tuple[Plan, RecordingSpec]]) -> list[RecordedRun]:
        """Record runs; what was recorded before is not again."""
        missing = [pair for pair in dict.fromkeys(asked) if pair not in self._known]
        self._known.update(zip(missing, self._runs.record(missing), strict=True))
        return [self._known[pair] for pair in asked]


def _is_news(gate: Gate) -> bool:
    """Return whether a gate of a part of a plan says more than the same gate of the whole."""
    return gate.passed is False or gate.name not in (gates.REPEATABLE, gates.STRUCTURE)


def _draw_alike(first: RecordedRun, candidate: RecordedRun) -> bool:
    """Return whether torch's generator stood alike wherever it was looked at."""
    return (first.fetch_draws, first.model_draws) == (
        candidate.fetch_draws,
        candidate.model_draws,
    )
