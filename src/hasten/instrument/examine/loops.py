"""How often one line of the user's model calls torch in one forward pass and its loss."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from hasten.instrument.operation_timing import is_compiled
from hasten.instrument.source_lines import is_own_file, own_place

if TYPE_CHECKING:
    from hasten.instrument.watch import Watch

_COUNTED_STEP = 3
_LEAST_COUNT = 10
_RARE_RATIO = 0.1  # of the commonest call of a line: what runs only in a few of its turns

Place = tuple[str, int]


class Loops:
    """Count calls under a function mode, from the first forward pass of a step to its backward.

    A line that a model's forward runs once per layer is not a loop over data: it meets
    different parameters each time. So only turns with the same parameters count; for a line
    that meets none, the parameters of its function count.
    """

    def __init__(self, watch: Watch) -> None:
        self._mode: Any = None
        self._counting = False
        self._step = 0
        self._backward_count = 0
        self._calls: dict[Place, Counter[str]] = {}
        self._functions: dict[Place, Place] = {}
        self._parameters: dict[Place, dict[str, set[tuple[int, ...]]]] = {}

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Begin to count, unless the script has its own mode."""
        import torch

        if not module.training:  # an evaluation would add its own
            return
        if self._step != _COUNTED_STEP or is_compiled():
            return
        if self._mode is None and not torch._C._len_torch_function_stack():
            self._mode = _mode(self._note)
            self._mode.__enter__()
        self._counting = self._mode is not None

    def backward(self, tensors: Any) -> None:
        """Count no longer."""
        self._backward_count += 1
        self._leave()

    def ended(self) -> None:
        """Count no longer."""
        self._leave()
        self._step += 1

    def _leave(self, *_: Any) -> None:
        import torch

        self._counting = False
        overrides: Any = torch.overrides
        # A mode that the script has entered meanwhile is on top of ours and goes first. Torch
        # takes ours off while it works on a call, which `loss.backward()` is, too.
        if self._mode is not None and overrides._get_current_function_mode() is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None

    loading = steps = _leave

    def _note(self, function: Any, args: Any) -> None:
        import torch

        name = getattr(function, "__name__", "")
        if not self._counting or name in ("__get__", "__set__"):  # an attribute such as shape
            return
        frame = sys._getframe(2)
        while frame is not None and not is_own_file(frame.f_code.co_filename):
            frame = frame.f_back  # type: ignore[assignment]
        place = own_place(frame)
        if place is None:
            return
        self._calls.setdefault(place, Counter())[name] += 1
        self._functions.setdefault(place, (place[0], frame.f_code.co_firstlineno))
        met = tuple(id(arg) for arg in args if isinstance(arg, torch.nn.Parameter))
        if met:
            self._parameters.setdefault(place, {}).setdefault(name, set()).add(met)

    def end(self) -> dict[str, Any]:
        """Return the lines that took many turns."""
        self._leave()
        if not self._calls:
            return {}
        found = []
        same = {place: self._same_count(place) for place in self._parameters}
        for place, calls in self._calls.items():
            home = self._functions[place]
            near = [count for other, count in same.items() if self._functions[other] == home]
            most_count = same.get(place, max(near, default=turns(calls)))
            turn_count = min(turns(calls), most_count)
            if turn_count >= _LEAST_COUNT:
                found.append({
                    "path": place[0], "line": place[1], "turn_count": turn_count,
                    "call_count": calls.total(),
                })  # fmt: skip
        return {"lines": found, "pass_ratio": max(1.0, self._backward_count / max(1, self._step))}

    def _same_count(self, place: Place) -> int:
        """Return how often a line met the same parameters."""
        met = self._parameters[place]
        return min(self._calls[place][name] // len(sets) for name, sets in met.items())


def turns(calls: Counter[str]) -> int:
    """Return how often a line ran: each turn calls every function that is not rare at least once.

    >>> turns(Counter({"linear": 128, "tanh": 64, "zeros": 1}))
    64
    """
    most_count = max(calls.values())
    return min(count for count in calls.values() if count >= _RARE_RATIO * most_count)


def _mode(note: Any) -> Any:
    from torch.overrides import TorchFunctionMode

    def answer(mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        note(function, args)
        return function(*args, **(kwargs or {}))

    # Made here, since torch is not there yet when this file is imported.
    return type("CallMode", (TorchFunctionMode,), {"__torch_function__": answer})()


EXAMINER = Loops
