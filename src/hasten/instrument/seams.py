"""Where torch is touched: one replaced attribute per seam, put back as it was.

Never global module hooks: a single one costs every module call its fast path. Never full
backward hooks: they break in-place operations. See docs/decisions/0003-seams.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import wraps
from threading import get_ident
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from hasten.instrument import accelerators
from hasten.instrument.ledger import INDEX
from hasten.instrument.source_lines import own_place
from hasten.modules import own_hooks
from hasten.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

_OPTIMIZER, _CHECKPOINT = INDEX[Phase.OPTIMIZER], INDEX[Phase.CHECKPOINT]


@dataclass(slots=True)
class Seam:
    """One attribute of torch, and what `make` puts in place of the original while we watch.

    A replacement only calls the original unless the seam is `on`. If the script has replaced ours
    in turn, it stays in place, off: the script's may call it.
    """

    owner: Any
    name: str
    make: Callable[[Any, Seam], Any]
    on: bool = False
    _placed: Any = None
    _original: Any = None

    def install(self) -> None:
        """Put the replacement in, or switch it on if it is still in place."""
        if self._placed is None:
            self._original = getattr(self.owner, self.name)
            self._placed = self.make(self._original, self)
            if isinstance(self.owner, ModuleType):  # so that pickle finds it
                self._placed.__module__ = self.owner.__name__
            setattr(self.owner, self.name, self._placed)
        self.on = True

    def remove(self) -> None:
        """Put the original back, unless the script has put something else there meanwhile."""
        self.on = False
        if self._placed is not None and vars(self.owner).get(self.name) is self._placed:
            setattr(self.owner, self.name, self._original)
            self._placed = self._original = None


def _root_call(watch: Any) -> Callable[[Any, Seam], Any]:
    """Calls of modules from the script: nested calls take the shortest way through."""
    import torch
    from torch.compiler import is_compiling

    internals: Any = torch._C
    tracing_state = internals._get_tracing_state
    inside = watch.live.roots.inside

    def make(original: Any, seam: Seam) -> Any:
        @wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            # Torch's own frame stays where warnings of its modules look for it.
            if inside[0]:
                return original(self, *args, **kwargs)
            # Whatever we read from a tensor under torch.jit.trace would become part of the graph.
            asleep = is_compiling() or tracing_state() or not seam.on
            if asleep or get_ident() != watch.thread:
                return original(self, *args, **kwargs)
            return watch.root_call(original, self, args, kwargs)

        return call

    return make


def _in_loop(watch: Any, report: Callable[..., Any]) -> Callable[[Any, Seam], Any]:
    """Let `report(original, ...)` answer calls from the thread of the loop."""
    from torch.compiler import is_compiling

    def make(original: Any, seam: Seam) -> Any:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or get_ident() != watch.thread or not seam.on:
                return original(*args, **kwargs)
            return report(original, *args, **kwargs)

        return call

    return make


def _timed(watch: Any, phase_index: int) -> Callable[[Any, Seam], Any]:
    """Charge a function to a phase."""

    def timed(original: Any, *args: Any, **kwargs: Any) -> Any:
        watch.ledger.enter(phase_index)
        try:
            return original(*args, **kwargs)
        finally:
            watch.ledger.leave()

    return _in_loop(watch, timed)


def _constructor(note: Callable[[Any], None]) -> Callable[[Any, Seam], Any]:
    def make(original: Any, seam: Seam) -> Any:
        @wraps(original)
        def construct(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if seam.on:
                note(self)

        return construct

    return make


class _Guise:
    """A method that is replaced for its instances; the class itself still shows the original.

    Tensor subclasses look up a method by identity (`func in {torch.Tensor.to, ...}`, as
    torchvision's do), and what torch passes to `__torch_function__` is the original.
    """

    __slots__ = ("_original", "_replacement")

    def __init__(self, original: Any, replacement: Any) -> None:
        self._original = original
        self._replacement = replacement

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self._original if instance is None else MethodType(self._replacement, instance)


def _transfer(watch: Any) -> Callable[[Any, Seam], Any]:
    move = _in_loop(watch, watch.transfer)
    return lambda original, seam: _Guise(original, move(original, seam))


def _loading(watch: Any) -> tuple[Seam, ...]:
    from torch.utils.data import dataloader

    return (
        Seam(dataloader.DataLoader, "__iter__", _in_loop(watch, watch.loader_iter)),
        Seam(dataloader._BaseDataLoaderIter, "__next__", _in_loop(watch, watch.loader_next)),
    )


def _switched_on(lines: list[tuple[str, int]]) -> Callable[[Any, Seam], Any]:
    """Note the line of the script that switches a debug mode on, the latest first."""

    def make(original: Any, seam: Seam) -> Any:
        @wraps(original)
        def switch(mode: Any, *args: Any, **kwargs: Any) -> Any:
            place = own_place(sys._getframe(1)) if mode and seam.on else None
            if place is not None:
                lines[:] = [place, *(line for line in lines if line != place)]
            return original(mode, *args, **kwargs)

        return switch

    return make


def watching(watch: Any) -> tuple[Seam, ...]:
    """Return the further seams that only measuring needs."""
    import torch
    from torch.utils.data import dataloader

    return (
        Seam(torch.optim.Optimizer, "__init__", _constructor(watch.constructed)),
        Seam(dataloader.DataLoader, "__init__", _constructor(watch.loader_lines.note)),
        Seam(torch.optim.Optimizer, "zero_grad", _timed(watch, _OPTIMIZER)),
        Seam(torch, "save", _timed(watch, _CHECKPOINT)),
        Seam(os, "fsync", _timed(watch, _CHECKPOINT)),
        Seam(torch, "set_anomaly_enabled", _switched_on(watch.debug_lines)),
        Seam(torch.autograd.profiler, "_enable_profiler", _switched_on(watch.debug_lines)),
    )


def differentiated(args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Return the tensors whose gradients `torch.autograd.backward` or `grad` was asked for."""
    import torch

    asked = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
    roots = asked if isinstance(asked, Sequence) else (asked,)
    return tuple(root for root in roots if isinstance(root, torch.Tensor))


class SeamGroups:
    """The seams of one `watch.Watch`, and torch's hooks around the steps of optimizers."""

    def __init__(self, watch: Any, *, measuring: bool) -> None:
        import torch
        from torch.utils.data._utils import fetch

        # Through these levers act: root calls and loaders.
        self._calling = (Seam(torch.nn.Module, "__call__", _root_call(watch)),)
        self._loading = _loading(watch)
        self._watching = watching(watch) if measuring else ()
        # Where a batch is made, a tensor moves from one device to another, and gradients are
        # computed; `Tensor.backward` calls one of the last.
        fetchers = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher) if measuring else ()
        self._fetching = [Seam(kind, "fetch", watch.fetches.timed) for kind in fetchers]
        self._moving = [Seam(torch.Tensor, name, _transfer(watch)) for name in ("to", "cuda")]
        make = _in_loop(watch, watch.backward)
        self._differentiating = [Seam(torch.autograd, name, make) for name in ("backward", "grad")]
        self._live, self._detach = watch.live, watch.detach
        self._measuring = measuring
        self._pid = os.getpid()
        self._times_transfers = self._is_in = False
        self._hooks: list[Any] = []

    def install(self) -> None:
        """Put the seams in."""
        for seam in (*self._watching, *self._fetching):
            seam.install()
        self._is_in = True
        self.mind()

    def remove(self) -> None:
        """Take the seams out."""
        fetching = self._fetching if os.getpid() == self._pid else ()  # it stays in forked workers
        for seam in (*self._watching, *fetching):
            seam.remove()
        self._is_in = False
        self.mind()

    def mind(self) -> None:
        """Intercept only what timing or a lever needs, once training has begun."""
        live = self._live
        calling = self._measuring or live.roots.wanted or not live.start.begun
        # A module that is called while a batch is made is no root.
        loading = calling or bool(live.answers.makers or live.answers.advancers)
        asked = (
            (self._calling, calling),
            (self._loading, loading),
            (self._moving, self._times_transfers or bool(live.answers.movers)),
            (self._differentiating, self._measuring or bool(live.phases.enterers)),
        )
        for group, wanted in asked:
            for seam in group:
                if self._is_in and wanted:
                    seam.install()
                else:
                    seam.remove()

    def mind_accelerators(self) -> None:
        """Time transfers from the step in which the script first uses an accelerator."""
        if not self._times_transfers and accelerators.in_use():
            self._times_transfers = True
            self.mind()

    def hook(self, before: Callable[..., None], after: Callable[..., None]) -> None:
        """Let torch call back around each step of an optimizer, but not in forked children."""
        from torch.optim import optimizer

        if not self._hooks:
            with own_hooks():
                self._hooks = [
                    optimizer.register_optimizer_step_pre_hook(before),
                    optimizer.register_optimizer_step_post_hook(after),
                ]
            os.register_at_fork(after_in_child=self._detach)

    def detach(self) -> None:
        """Take the seams and the hooks out."""
        self.remove()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
