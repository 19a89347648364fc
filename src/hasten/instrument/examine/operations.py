"""What the operations of a few steps cost, by what they work on."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from hasten.instrument.examine.faults import faults_count
from hasten.instrument.operation_profile import OperationProfile, name_of
from hasten.instrument.operation_timing import OperationMode, is_compiled, price_ns
from hasten.instrument.probes import product_speed_ratio, speed_ratio
from hasten.instrument.rerun import DENORMAL_RATIO, Rerun
from hasten.instrument.setting_signs import denormal_ratio
from hasten.modules import is_known, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hasten.instrument.watch import Watch

    Place = tuple[str, int]

_STEPS = (2, 4, 6, 9, 12)
"""Steps of the examination that run under the mode, counted from 0; the others run as usual."""
_MANY_COUNT = 20_000  # of operations in a step: under the mode it takes seconds longer
_SHAPE_COUNT, _PROBES_S = 6, 0.6
_PLACE_COUNT = 3
_LEAST_FAULTS_RATIO = 0.1


class Operations:
    """Sort the operations of some steps."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._mode: OperationMode | None = None
        self._tally: OperationProfile | None = None
        self._rerun: Rerun | None = None
        # Thread time leaves out waiting for a CPU that somebody else had.
        self._device, self._clock = "cpu", time.thread_time_ns
        self._step = self._before_count = 0
        self._in_model = False
        self._tallies: dict[int, OperationProfile] = {}
        self._reruns: list[Rerun] = []
        self._forms: frozenset[str] | None = None
        weights = (next(weights_of(root), None) for root in list(watch.live.roots.known))
        kinds = {weight.device.type for weight in weights if weight is not None} - {"cpu"}
        if kinds:  # its operations take no time of this thread
            self._device, self._clock = kinds.pop(), time.perf_counter_ns
        self._price_ns, self._floor_ns = price_ns(self._clock)
        self._denormal_ratio = denormal_ratio(watch.live.optimizers.known) or 0.0

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Note that what follows belongs to the model and its loss."""
        self._mark(in_model=True)

    def backward(self, tensors: Any) -> None:
        """Note that what follows the backward pass belongs to the update."""
        self._mark(in_model=False)

    def steps(self, optimizer: Any) -> None:
        """Note in which forms torch has the class; for several classes, their common forms."""
        forms = forms_of(optimizer)
        self._forms = forms if self._forms is None else self._forms & forms

    def _mark(self, *, in_model: bool) -> None:
        self._in_model = in_model
        if self._tally is not None:
            self._tally.in_model = in_model

    def ended(self) -> None:
        """Begin or end a step under the mode."""
        if self._mode is not None:
            self._leave(self._mode)
        self._step += 1
        has_many = any(tally.noted_count > _MANY_COUNT for tally in self._tallies.values())
        if self._step in _STEPS and not (has_many or is_compiled()):
            self._enter()

    def _enter(self) -> None:
        mode = OperationMode(self._ran)
        if not mode.begin():
            return
        self._mode, self._tally = mode, OperationProfile(self._floor_ns)
        self._tally.in_model = self._in_model
        self._before_count = faults_count()
        # The first of these steps shows whether the results are worth a second look.
        worth = self._denormal_ratio > DENORMAL_RATIO and self._step > _STEPS[0]
        self._rerun = Rerun() if worth else None

    def _leave(self, mode: OperationMode) -> None:
        mode.end()
        if self._tally is not None:  # otherwise something could not be sorted
            self._tallies[self._step] = self._tally
            self._tally.faults_count = faults_count() - self._before_count
            self._denormal_ratio = max(self._denormal_ratio, self._tally.denormal_ratio)
            if self._rerun is not None:
                self._reruns.append(self._rerun)
        self._mode = self._tally = self._rerun = None

    def _ran(self, operation: Any, args: Any, kwargs: Any) -> Any:
        tally, name = self._tally, name_of(operation)
        if tally is None:
            return operation(*args, **kwargs)
        denormal_ns = 0
        if self._rerun is not None:
            try:
                denormal_ns = self._rerun.try_out(name, operation, args, kwargs)
            except Exception:
                self._rerun = None
        phase, before_count = self._watch.ledger.current, faults_count()
        start = self._clock()
        result = operation(*args, **kwargs)
        _wait_for(args)
        spent_ns = self._clock() - start
        try:
            tally.note_costs(faults_count() - before_count, denormal_ns, phase)
            tally.note(name, args, result, phase, spent_ns)
        except Exception:
            self._tally = None
        return result

    def end(self) -> dict[str, Any]:
        """Probe what the operations would take in other forms, and return all sums in seconds."""
        if self._mode is not None:  # a step that has not run
            self._mode.end()
        if not self._tallies:
            return {}
        tallies = list(self._tallies.values())
        kinds = sorted({kind for tally in tallies for kind in tally.ns})
        reruns = [rerun.waste_ns * 1e-9 for rerun in self._reruns]
        return {
            "steps": list(self._tallies),
            "price_s": self._price_ns * 1e-9,
            "price_ratio": self._price_ns / self._floor_ns,
            "count": [tally.model_count for tally in tallies],
            "repeats_count": max(max(tally.repeats.values(), default=0) for tally in tallies),
            "seconds": {kind: [t.ns.get(kind, 0.0) * 1e-9 for t in tallies] for kind in kinds},
            "places": _places(tallies, kinds),
            "loops": _loops(tallies),
            "optimizer_forms": None if self._forms is None else sorted(self._forms),
            "denormal_ratio": self._denormal_ratio,
            "denormal_s": reruns or None,
            "layout_s": self._layout_s(tallies),
            "speed_ratio": self._speeds(kinds),
        }

    def _layout_s(self, tallies: list[OperationProfile]) -> list[float] | None:
        """Return the seconds that convolutions would save with channels last, in each step."""
        sums: Counter[Any] = Counter()
        for tally in tallies:
            sums.update(tally.convolutions_ns)
        kept: dict[Any, float] = {}
        until = time.perf_counter() + _PROBES_S
        for shape, _ in sums.most_common(_SHAPE_COUNT):
            if time.perf_counter() < until:
                kept[shape] = 1 - 1 / speed_ratio(shape)
        if not kept:
            return None
        return [
            sum(kept.get(s, 0.0) * ns for s, ns in t.convolutions_ns.items()) * 1e-9
            for t in tallies
        ]

    def _speeds(self, kinds: list[str]) -> dict[str, float]:
        """Return how many times faster other products that ran are than those of float32."""
        if self._device not in ("cpu", "cuda"):
            return {}
        names = {kind.partition(".")[2] for kind in kinds if kind.endswith("float16")}
        names |= {"float64" for kind in kinds if kind.startswith("float64.")}
        return {name: product_speed_ratio(self._device, name) for name in sorted(names)}


def forms_of(optimizer: Any) -> frozenset[str]:
    """Return which of the options fused and foreach the class takes, if it is torch's own.

    A class of the script or of a library may have the same name and neither option.
    """
    if not is_known(optimizer):
        return frozenset()
    return frozenset({"foreach", "fused"} & set(optimizer.defaults))


def _wait_for(args: Any) -> None:
    """Wait for an accelerator, so that the time of an operation is its own."""
    import torch

    first = args[0] if args else None
    if isinstance(first, torch.Tensor) and first.is_cuda:
        torch.cuda.synchronize(first.device)


def _places(tallies: list[OperationProfile], kinds: list[str]) -> dict[str, list[Place]]:
    """Return the costliest lines of each kind of work, of denormal numbers and of page faults."""
    found = {kind: _costliest(tally.places_ns.get(kind, {}) for tally in tallies) for kind in kinds}
    found["denormals"] = _costliest(tally.denormal_ns for tally in tallies)
    # Most faults may be outside of all operations, and lines with few faults are not to blame.
    least_count = _LEAST_FAULTS_RATIO * sum(tally.faults_count for tally in tallies)
    found["faults"] = _costliest((tally.faulting for tally in tallies), least_count)
    return found


def _costliest(costs: Iterable[Mapping[Place, float]], least: float = 0.0) -> list[Place]:
    """Return the lines that cost most over all steps, and more than the least."""
    sums: Counter[Place] = Counter()
    for one in costs:
        sums.update(one)
    return [place for place, cost in sums.most_common(_PLACE_COUNT) if cost > least]


def _loops(tallies: list[OperationProfile]) -> list[dict[str, Any]]:
    """Return what each line of the update takes in operations on one small tensor each."""
    lines = sorted({place for tally in tallies for place in tally.loops})
    found = []
    for path, line in lines:
        loops = [tally.loops.get((path, line)) for tally in tallies]
        there = [loop for loop in loops if loop is not None]
        found.append({
            "path": path, "line": line,
            "in_optimizer": there[0].in_optimizer,
            "count": min(loop.count for loop in there),
            "tensors_count": min(len(loop.tensors) for loop in there),
            "seconds": [loop.spent_ns * 1e-9 if loop else 0.0 for loop in loops],
        })  # fmt: skip
    return found


EXAMINER = Operations
