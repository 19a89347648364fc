"""What forward passes in eval mode cost whose gradients are never asked for."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hasten.instrument.samples import tensors_in
from hasten.instrument.source_lines import own_place
from hasten.modules import own_hooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.instrument.watch import Watch

_OUTPUT_COUNT = 8
_PLACE_COUNT = 3


@dataclass(slots=True)
class EvaluationPass:
    """One forward pass in eval mode that recorded a graph."""

    spent_ns: int
    place: tuple[str, int] | None
    is_used: bool = False


class Evaluation:
    """Time the calls of root modules in eval mode whose graph no backward pass goes through.

    A hook at the end of the graph notices gradients, so a model that trains in eval mode,
    because its statistics are frozen or to make adversarial examples, is not counted.
    """

    def __init__(self, watch: Watch) -> None:
        self._passes: list[EvaluationPass] = []
        self._unused_s: list[float] = []
        self._places: Counter[tuple[str, int]] = Counter()
        self._count = 0
        self._undo = watch.live.on_call(self._around)

    def _around(self, module: Any, call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        import torch

        if module.training or not torch.is_grad_enabled():
            return call(args, kwargs)
        start_ns = time.perf_counter_ns()
        result = call(args, kwargs)
        nodes = [tensor.grad_fn for tensor in tensors_in(result) if tensor.grad_fn is not None]
        if nodes:
            seen = EvaluationPass(time.perf_counter_ns() - start_ns, own_place(sys._getframe(1)))
            self._passes.append(seen)
            with own_hooks():
                for node in nodes[:_OUTPUT_COUNT]:
                    node.register_prehook(partial(_use, seen))
        return result

    def ended(self) -> None:
        """Settle the passes before this step's end: by now it is known what they were for."""
        unused = [seen for seen in self._passes if not seen.is_used]
        self._unused_s.append(sum(seen.spent_ns for seen in unused) * 1e-9)
        self._count += len(unused)
        for seen in unused:
            if seen.place is not None:
                self._places[seen.place] += seen.spent_ns
        self._passes.clear()

    def end(self) -> dict[str, Any]:
        """Stop wrapping root calls."""
        self._undo()
        return {
            "unused_s": self._unused_s,
            "unused_count": self._count,
            "places": [place for place, _ in self._places.most_common(_PLACE_COUNT)],
        }


def _use(seen: EvaluationPass, gradients: Any) -> None:
    seen.is_used = True


EXAMINER = Evaluation
