"""What torch's own data parallelism does around the model in each step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hasten.instrument.object_table import Table
from hasten.instrument.operation_timing import is_compiled
from hasten.instrument.stand_ins import StandIns
from hasten.instrument.step_growth import StepGrowth
from hasten.modules import own_hooks, weights_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.instrument.watch import Watch

_WATCHED = range(1, 4)
"""Steps in which each parameter reports that it got a gradient, counted from 0."""


class Parallel:
    """Time what `DataParallel` moves and what `DistributedDataParallel` searches."""

    def __init__(self, watch: Watch) -> None:
        self._undos: list[Callable[[], None]] = []
        self._spent_ns = 0
        self._growth = StepGrowth(lambda: self._spent_ns * 1e-9)
        self._device_count = 0
        self._wrapped = Table()
        self._hooks: list[Any] = []
        self._reached: set[int] = set()
        self._unused: list[int] = []
        self._sync_count = 0
        self._syncs: list[int] = []

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Look at a root module that splits its batches among devices or processes."""
        from torch.nn.parallel import DataParallel, DistributedDataParallel

        if isinstance(module, DataParallel):
            self._device_count = max(self._device_count, len(module.device_ids))
            self._time(DataParallel, "scatter", "replicate", "gather")
        elif isinstance(module, DistributedDataParallel):
            self._wrapped[module] = None
            self._sync_count += bool(module.require_backward_grad_sync)
            self._time(DistributedDataParallel, "_post_forward")
            if len(self._growth.seen) in _WATCHED and not self._hooks and not is_compiled():
                self._hook(module)

    def _time(self, owner: Any, *names: str) -> None:
        if not self._undos:
            stand_ins = StandIns(lambda: True)
            there = [name for name in names if hasattr(owner, name)]
            self._undos = [stand_ins.add(owner, name, self._timed) for name in there]

    def _timed(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start_ns = time.perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            self._spent_ns += time.perf_counter_ns() - start_ns

    def _hook(self, module: Any) -> None:
        def reach(parameter: Any) -> None:
            self._reached.add(id(parameter))

        for parameter in weights_of(module):
            if parameter.requires_grad:
                with own_hooks():
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(reach))

    def ended(self) -> None:
        """Note the sums of a step."""
        self._growth.ended()
        self._syncs.append(self._sync_count)
        self._sync_count = 0
        if self._hooks:
            self._unused.append(len(self._hooks) - len(self._reached))
            self._unhook()

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._reached = [], set()

    def end(self) -> dict[str, Any]:
        """Put everything back."""
        for undo in self._undos:
            undo()
        self._unhook()
        if self._device_count:
            return {"device_count": self._device_count, "moving_s": self._growth.seen}
        module = next(iter(self._wrapped), None)
        if module is None:
            return {}
        told = module._get_ddp_logging_data()
        exposed_ns = told.get("avg_backward_comm_time", 0) - told.get(
            "avg_backward_compute_comm_overlap_time", 0
        )
        return {
            "searches": bool(module.find_unused_parameters and not module.static_graph),
            "search_s": self._growth.seen,
            "unused_count": max(self._unused, default=None),
            "syncs": self._syncs,
            "rank_count": int(told["world_size"]),
            "exchange_bytes": int(told["total_parameter_size_bytes"]),
            "exchange_s": max(0, exposed_ns) * 1e-9,
        }


EXAMINER = Parallel
