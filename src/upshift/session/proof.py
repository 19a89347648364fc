"""Run the gates on a plan: which runs are needed, and what they show together."""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from upshift.errors import ScriptFailed
from upshift.launch.verification import recorded
from upshift.lever import lookup
from upshift.records import Effect, Gate, Plan, Proof
from upshift.session.costs import recorded_count
from upshift.verify import gates
from upshift.verify.evidence import Evidence, read_evidence

if TYPE_CHECKING:
    from types import TracebackType

    from upshift.launch.process import Isolation
    from upshift.records import Workload

_FLOOR_SEEDS = (1, 2)
_AT_ONCE_COUNT = 2
_FORCED_LEAST_COUNT, _FORCED_MOST_COUNT = 2, 8
_TAUGHT_BYTES = 1 << 28


def declared_effect(plan: Plan) -> Effect:
    """Return the most that the levers of a plan say they do."""
    return Effect.worst(*effects(plan))


def effects(plan: Plan) -> frozenset[Effect]:
    """Return what the levers of a plan say they do, each."""
    return frozenset(lever.effect for lever, _ in lookup(plan))


class Prover:
    """Record the script once, then judge plans against it.

    Nothing is timed here, so two runs go on at the same time.

    Args:
        workload: the user's command.
        isolation: how the runs' writes are kept away from the user's files.
        step_s: seconds of a step, which decides how many are recorded.
        start_s: seconds until the first step.
        patience_s: how long a first step may take.
        parameter_count: numbers in the model, which decides for how many steps its weights are
            kept.
    """

    def __init__(
        self, workload: Workload, *, isolation: Isolation, step_s: float, start_s: float,
        patience_s: float, parameter_count: int,
    ) -> None:  # fmt: skip
        self.launch_count = 0
        self._workload = workload
        self._isolation = isolation
        self._step_count = recorded_count(step_s)
        # Two runs share the cores, and every step is hashed: be generous.
        self._patience_s = patience_s + 4 * start_s + 10 * self._step_count * step_s
        fitting = _TAUGHT_BYTES // (4 * max(1, parameter_count))
        self._forced_count = max(_FORCED_LEAST_COUNT, min(fitting, _FORCED_MOST_COUNT))
        self._taught = Path(tempfile.mkdtemp(prefix="upshift-"))
        self._baseline: tuple[Evidence, Evidence] | None = None
        self._floors: tuple[Evidence, ...] = ()

    def __enter__(self) -> Prover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        shutil.rmtree(self._taught, ignore_errors=True)

    def prove(self, plan: Plan) -> Proof:
        """Return what the gates say of `plan`."""
        declared = declared_effect(plan)
        if not plan.settings:
            return Proof(effect=Effect.EXACT)
        try:
            return self._judge(plan, declared)
        except ScriptFailed as failure:
            gate = Gate(name="G1 structure", passed=False, says=failure.problem)
            return Proof(effect=declared, gates=(gate,))

    def _judge(self, plan: Plan, declared: Effect) -> Proof:
        first, second, candidate = self._runs(plan)
        repeats = gates.repeatable(first, second)
        redraws = declared is Effect.REDRAW and candidate.batches != first.batches
        structure = gates.same_structure(first, candidate, redraws=redraws)
        if candidate.equals(first):
            bits = gates.same_bits(first, candidate)
            return gates.prove(Effect.EXACT, (repeats, structure, bits))
        if declared is Effect.EXACT and repeats.passed:
            return gates.prove(declared, (repeats, structure, gates.same_bits(first, candidate)))
        effect = declared
        if declared is Effect.REDRAW and not redraws:  # the same batches: only the rest is left
            effect = Effect.ROUNDING
        rest = plan if not redraws else Plan(
            tuple((lever.name, s) for lever, s in lookup(plan) if lever.effect is not Effect.REDRAW)
        )  # fmt: skip
        if not rest.settings:
            return gates.prove(effect, (repeats, structure))
        judged = candidate if rest == plan else self._record(rest)
        if repeats.passed is None:
            rounding = gates.within_spread(first, judged, repeats)
        else:
            rounding = gates.within_floor(first, judged, self._floor_runs())
        return gates.prove(effect, (repeats, structure, rounding))

    def _runs(self, plan: Plan) -> tuple[Evidence, Evidence, Evidence]:
        """Record the script twice, then the plan and a floor, two at a time."""
        with ThreadPoolExecutor(_AT_ONCE_COUNT) as pool:
            if self._baseline is None:
                taught = pool.submit(self._record, Plan(), teach=True)
                second = pool.submit(self._record, Plan(), teach=True)
                self._baseline = (taught.result(), second.result())
            candidate = pool.submit(self._record, plan)
            if not self._floors and declared_effect(plan) is not Effect.EXACT:
                floor = pool.submit(self._record, Plan(), floor_seed=_FLOOR_SEEDS[0])
                self._floors = (floor.result(),)
            return (*self._baseline, candidate.result())

    def _floor_runs(self) -> tuple[Evidence, ...]:
        for seed in _FLOOR_SEEDS[len(self._floors) :]:
            self._floors += (self._record(Plan(), floor_seed=seed),)
        return self._floors

    def _record(
        self, plan: Plan, *, teach: bool = False, floor_seed: int | None = None
    ) -> Evidence:
        self.launch_count += 1
        with recorded(
            self._workload,
            plan,
            step_count=self._step_count,
            forced_count=self._forced_count,
            teacher=None if teach else self._taught,
            isolation=self._isolation,
            patience_s=self._patience_s,
            floor_seed=floor_seed,
        ) as (message, folder):
            if teach and not any(self._taught.iterdir()):
                for path in folder.glob("weights*"):
                    shutil.copy(path, self._taught)
            return read_evidence(message, folder)
