"""Which recorded runs a proof needs, and which ones exist already."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from hasten.lever import lookup
from hasten.protocol import RecordingSpec
from hasten.records import Effect, Plan
from hasten.verify import gates

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from hasten.records import Gate
    from hasten.verify.recorded_run import RecordedRun

ONE_BIT = 2.0**-23
FLOORS_COUNT = 3
_RECORDED_COUNT, _SLOW_RECORDED_COUNT, _SLOW_STEP_S = 32, 16, 5.0
_OTHER_SEEDS_COUNT = 2
_FORCED_LEAST_COUNT, _FORCED_COUNT, _FORCED_MOST_COUNT = 2, 8, 24
_FORCED_SHARE = 0.75
_TAUGHT_BYTES, _EVIDENCE_BYTES = 1 << 28, 1 << 27


class RunRecorder(Protocol):
    """Whoever launches the script and records its first steps.

    Attributes:
        teacher: the folder where the first run of the script leaves its weights, batches and
            gradients for the others.
        teaching_run: the run that left them; None before.
        health: for each run of the script that could teach, its losses, moves and updates.
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
    """Return the strongest effect that the levers of a plan declare."""
    return Effect.worst(*effects(plan))


def effects(plan: Plan) -> frozenset[Effect]:
    """Return the effects that the levers of a plan declare."""
    return frozenset(lever.effect for lever, _ in lookup(plan))


def recorded_count(step_s: float) -> int:
    """Return the steps that each run of a proof records."""
    return _RECORDED_COUNT if step_s < _SLOW_STEP_S else _SLOW_RECORDED_COUNT


def wave_count(effects: Collection[Effect]) -> int:
    """Return how many times a proof without a second attempt runs two runs side by side.

    A plan that claims equal bits runs once, beside the script. Else the script runs twice, then
    the plan beside the script with one bit changed. A plan that redraws needs two more runs under
    other seeds. A mixed plan is recorded once more without its redrawing or narrowing levers.

    >>> wave_count({Effect.EXACT}), wave_count({Effect.ROUNDING, Effect.DISTRIBUTION})
    (1, 4)
    >>> wave_count({Effect.DISTRIBUTION}), wave_count({Effect.EXACT, Effect.DISTRIBUTION})
    (3, 4)
    """
    asked = set(effects) - {Effect.EXACT}
    count = 1 if not asked else 2 + bool(asked - {Effect.ROUNDING}) + (Effect.PRECISION in asked)
    if Effect.DISTRIBUTION in asked and set(effects) != {Effect.DISTRIBUTION}:
        count += 1
    return count


def epsilon_ratio(plan: Plan) -> float:
    """Return the distance of neighbouring numbers over their size where a plan has fewer bits."""
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


class ProofRuns:
    """The recorded runs of one script: each is recorded once.

    Attributes:
        baseline: two runs of the script as it is, the one that teaches the others first; None
            until both are needed.
        repeats: whether these two are the same.
    """

    def __init__(self, recorder: RunRecorder, *, step_s: float, parameter_count: int) -> None:
        self.baseline: tuple[RecordedRun, RecordedRun] | None = None
        self.repeats: Gate | None = None
        self._recorder = recorder
        step_count = recorded_count(step_s)
        forced_count = _forced_count(step_count, parameter_count)
        self._take = RecordingSpec(
            step_count=step_count, forced_count=forced_count, teacher=recorder.teacher
        )
        self._first: RecordedRun | None = None
        self._keeps = False
        self._known: dict[tuple[Plan, RecordingSpec], RecordedRun] = {}

    @property
    def varies(self) -> bool:
        """The script does not repeat itself."""
        return self.repeats is not None and self.repeats.passed is None

    def side_by_side(self, plan: Plan) -> tuple[RecordedRun, RecordedRun]:
        """Return a run of the script and one under a plan, neither of which is taught."""
        keeping = replace(self._take, teacher=None)
        if self._first is None:
            self._first, candidate = self._recorder.record([(Plan(), keeping), (plan, keeping)])
        else:
            (candidate,) = self._recorder.record([(plan, keeping)])
        return self._first, candidate

    def needed(self, plan: Plan) -> tuple[RecordedRun, RecordedRun, RecordedRun]:
        """Return two runs of the script and one under a plan, recorded beside its first floor."""
        asked = effects(plan)
        feeds = bool(asked & {Effect.DISTRIBUTION, Effect.PRECISION})
        first, second = self._untouched(keeps=feeds)
        wanted = [(plan, replace(self._take, feeds=feeds or self.varies))]
        if Effect.PRECISION in asked:
            wanted.append((Plan(), replace(self._take, perturb_ratio=epsilon_ratio(plan))))
        elif declared_effect(plan) is not Effect.EXACT:
            wanted.append((Plan(), replace(self._take, perturb_ratio=ONE_BIT)))
        return first, second, self._record_all(wanted)[0]

    def _untouched(self, *, keeps: bool) -> tuple[RecordedRun, RecordedRun]:
        """Return two runs of the script as it is, the one that teaches the others first.

        A script that does not repeat itself gives its batches and gradients to all other runs: they
        then differ only by what is left, and the optimizer by nothing.
        """
        if self.baseline is None or (keeps and not self._keeps):
            self._keeps = keeps
            keeping = replace(self._take, teacher=None, keeps=keeps)
            if self._first is None or keeps:
                self._known.clear()  # what was kept for another plan is not enough for this one
                self._recorder.forget()
                first, second = self._recorder.record([(Plan(), keeping)] * 2)
            else:
                first, (second,) = self._first, self._recorder.record([(Plan(), keeping)])
            taught = second is self._recorder.teaching_run
            self.baseline = (second, first) if taught else (first, second)
            if not self.varies:
                self.repeats = gates.repeatable(*self.baseline)
            self._take = replace(self._take, feeds=self.varies)
            if self.varies and not keeps:
                return self._untouched(keeps=True)
        return self.baseline

    def floors(self, ratio: float, count: int) -> list[RecordedRun]:
        """Return runs with perturbed weights; more of them for a script that varies."""
        take = replace(self._take, perturb_ratio=ratio)
        seeds = range(1, (FLOORS_COUNT if self.varies else count) + 1)
        return self._record_all([(Plan(), replace(take, perturb_seed=seed)) for seed in seeds])

    def other_draws(self) -> list[RecordedRun]:
        """Return the script on the same batches from the same weights, under other seeds."""
        take = replace(self._take, feeds=True)
        seeds = range(1, _OTHER_SEEDS_COUNT + 1)
        return self._record_all([(Plan(), replace(take, reseed=seed)) for seed in seeds])

    def under(self, plan: Plan, **details: Any) -> RecordedRun:
        """Return a run under a plan, with what is special about it."""
        return self._record_all([(plan, replace(self._take, **details))])[0]

    def _record_all(self, asked: Sequence[tuple[Plan, RecordingSpec]]) -> list[RecordedRun]:
        """Return runs, recording only those that were not recorded before."""
        missing = [pair for pair in dict.fromkeys(asked) if pair not in self._known]
        self._known.update(zip(missing, self._recorder.record(missing), strict=True))
        return [self._known[pair] for pair in asked]
