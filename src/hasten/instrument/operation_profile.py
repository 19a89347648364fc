"""What the operations of a step work on, and how long that takes."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from hasten.instrument.ledger import INDEX
from hasten.instrument.probes import ConvolutionShape, with_channels_last
from hasten.instrument.rerun import denormal_share
from hasten.instrument.samples import first_tensor, tensors_in
from hasten.instrument.source_lines import OWN, line_of, own_place
from hasten.records import Phase

if TYPE_CHECKING:
    from types import FrameType

    Place = tuple[str, int]

_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "linear"})
_CONVOLUTIONS = frozenset({"convolution", "convolution_backward"})
_CONVERSIONS = frozenset({"_to_copy", "copy_"})
_NAN_CHECKS = frozenset({"isnan", "_is_any_true", "any", "_local_scalar_dense"})
_NARROW = ("torch.bfloat16", "torch.float16")
SMALL_COUNT = 1 << 14
"""Elements up to which an operation takes about as long as on a single number."""
_LIGHT_COUNT, _LIGHT_PRODUCT_COUNT = 1 << 12, 100_000
_LOOKED_AT_NS = 20_000
_MODEL = {INDEX[phase] for phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)}
_DATA = INDEX[Phase.DATA]
_BACKWARD, _OPTIMIZER = INDEX[Phase.BACKWARD], INDEX[Phase.OPTIMIZER]
_UPDATE = {_OPTIMIZER, INDEX[Phase.OTHER]}


@cache
def _is_ours_or_torch(path: str) -> bool:
    return path.startswith(OWN) or f"{os.sep}torch{os.sep}" in path


def _line_outside_torch() -> Place | None:
    """Return file and line of the innermost frame outside torch, which may be in a library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours_or_torch(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, line_of(frame))


def _place(phase: int) -> Place | None:
    """Return the script's running line; none tells what a backward pass works on."""
    return None if phase == _BACKWARD else own_place(sys._getframe(2))


@cache
def name_of(operation: Any) -> str:
    """Return the name of an operation without its library and overload."""
    return str(operation.name()).partition("::")[2].partition(".")[0]


def is_light(name: str, tensors: Any) -> bool:
    """Return whether an operation computes so little that its time is just the overhead of a call.

    Within a step, that is more than in a tight loop. The number of multiplications in a
    product of m x k and k x n numbers is the square root of the product of the three sizes.
    """
    sizes = sorted((tensor.numel() for tensor in tensors), reverse=True)
    if name in _PRODUCTS:
        return math.sqrt(math.prod(sizes[:3])) <= _LIGHT_PRODUCT_COUNT
    return name not in _CONVOLUTIONS and (not sizes or sizes[0] <= _LIGHT_COUNT)


@dataclass(slots=True)
class Loop:
    """Operations on one small tensor each that one line of the script makes in its update."""

    spent_ns: int = 0
    count: int = 0
    in_optimizer: bool = False
    tensors: set[int] = field(default_factory=set)


class OperationProfile:
    """Sort the operations of one step.

    Args:
        floor_ns: what an operation takes on a single number.

    Attributes:
        noted_count: operations that were sorted.
        in_model: the script is between the forward pass and the end of the backward pass.
        ns: nanoseconds by what they went into.
        model_count: operations of forward, loss and backward.
        denormal_ratio: the largest share of denormal numbers in a result.
        faulting: page faults by line of the script.
        faults_count: page faults of the whole step.
    """

    def __init__(self, floor_ns: float) -> None:
        self.noted_count = 0
        self.in_model = False
        self.ns: dict[str, float] = defaultdict(float)
        self.model_count = 0
        self.denormal_ratio = 0.0
        self.convolutions_ns: dict[Any, float] = defaultdict(float)
        self.places_ns: dict[str, dict[Place, float]] = {}
        self.faulting: Counter[Place] = Counter()
        self.faults_count = 0
        self.denormal_ns: Counter[Place] = Counter()
        self.loops: dict[Place, Loop] = {}
        self.repeats: Counter[Any] = Counter()
        self._floor_ns = floor_ns

    def note(self, name: str, args: Any, result: Any, phase: int, spent_ns: int) -> None:
        """Sort one operation."""
        self.noted_count += 1
        tensors = tuple(tensors_in((args, result)))
        kinds = {str(tensor.dtype) for tensor in tensors}
        work_ns = max(0.0, spent_ns - self._floor_ns)
        if phase in _MODEL or (self.in_model and phase in _UPDATE):
            self._note_model(name, phase, 0.0 if is_light(name, tensors) else work_ns)
        elif phase in _UPDATE:
            self._note_update(name, args, tensors, phase, spent_ns)
        # What is float64 only up to its conversion slows nothing else down.
        if "torch.float64" in kinds and phase != _DATA and name not in _CONVERSIONS:
            is_product = name in _PRODUCTS or name in _CONVOLUTIONS
            self._add("float64.products" if is_product else "float64.others", work_ns, phase)
        self._note_products(name, args, kinds, spent_ns, phase)
        if spent_ns > _LOOKED_AT_NS:
            found = tensors_in(result)
            self.denormal_ratio = max(self.denormal_ratio, *map(denormal_share, found), 0.0)

    def note_costs(self, faults_count: int, denormal_ns: int, phase: int) -> None:
        """Note which line of the script an operation's faults and denormal numbers belong to."""
        if (faults_count > 0 or denormal_ns > 0) and (place := _place(phase)):
            self.faulting[place] += faults_count
            self.denormal_ns[place] += denormal_ns

    def _add(self, kind: str, spent_ns: float, phase: int) -> None:
        self.ns[kind] += spent_ns
        if place := _place(phase):
            self.places_ns.setdefault(kind, defaultdict(float))[place] += spent_ns

    def _note_model(self, name: str, phase: int, work_ns: float) -> None:
        self.model_count += 1
        self.ns["model_work"] += work_ns
        if phase == _BACKWARD and name in _NAN_CHECKS:
            self.ns["nan_check"] += work_ns + self._floor_ns
        if phase != _BACKWARD:
            self.repeats[name, _line_outside_torch()] += 1

    def _note_update(self, name: str, args: Any, tensors: Any, phase: int, spent_ns: int) -> None:
        lists = [arg for arg in args[:2] if isinstance(arg, (list, tuple))]
        in_list = first_tensor(lists) is not None
        if not tensors or in_list or max(t.numel() for t in tensors) > SMALL_COUNT:
            if phase == _OPTIMIZER:
                self.ns["large_update"] += spent_ns
            return
        # Only writes are updates: even with lists of tensors, step counts are read one by one. Nor
        # is a batch that is filled number by number, outside of an optimizer.
        if phase != _OPTIMIZER and tensors[0].numel() == 1 and tensors[0]._is_view():
            return
        place = own_place(sys._getframe(2)) if name.endswith("_") else None
        if place is not None:
            loop = self.loops.setdefault(place, Loop(in_optimizer=phase == _OPTIMIZER))
            loop.count += 1
            loop.spent_ns += spent_ns
            loop.tensors.add(tensors[0].data_ptr())

    def _note_products(
        self, name: str, args: Any, kinds: set[str], spent_ns: int, phase: int
    ) -> None:
        narrow = [kind for kind in _NARROW if kind in kinds]
        if narrow and name == "_to_copy":
            self._add("cast", spent_ns, phase)
        elif name in _PRODUCTS or name in _CONVOLUTIONS:
            sort = "product" if name in _PRODUCTS else "convolution"
            kind = narrow[0] if narrow else min(kinds)
            self._add(f"{sort}.{kind.removeprefix('torch.')}", spent_ns, phase)
            if name in _CONVOLUTIONS and (shape := shape_of(name, args)) is not None:
                self.convolutions_ns[shape] += spent_ns


def shape_of(name: str, args: Any) -> Any:
    """Return the shape of a 2-D or 3-D convolution on the CPU with channels first, else None."""
    backward = name == "convolution_backward"
    image, kernel = args[1:3] if backward else args[:2]
    if not image.is_cpu or image.dim() not in (4, 5):
        return None
    if with_channels_last(image) or with_channels_last(kernel):
        return None
    options = args[4:10] if backward else args[3:9]
    return ConvolutionShape(tuple(image.shape), tuple(kernel.shape), image.dtype, _frozen(options))


def _frozen(options: Any) -> Any:
    return tuple(tuple(part) if isinstance(part, (list, tuple)) else part for part in options)
