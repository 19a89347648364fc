"""The vital signs of training: its losses, how far its weights move, how fast it steps.

The same code records them without levers, while a plan is proved, and reads them in a real run:
reading them in different ways would look like a fault of the levers.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from threading import get_ident
from typing import TYPE_CHECKING, Any

from hasten.instrument.accelerators import is_capturing
from hasten.instrument.eager import uncompiled
from hasten.instrument.object_table import parameters_of
from hasten.instrument.seams import differentiated
from hasten.instrument.step_ends import Roles, steps_around
from hasten.modules import own_hooks, weights_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.instrument.watch import Watch

WINDOW_COUNT = 8
"""Steps over which losses are summed up; the movement of the weights is read after each."""

_MOST_LOSSES_COUNT = 4096
_TENSOR_COUNT, _SLICE_COUNT, _VALUE_COUNT = 4, 4096, 256


class TrainingHealthMonitor:
    """Read the vital signs until `close`.

    A step is an optimizer's, so a GAN makes two in each round; where the script updates
    its weights by hand, a step is a backward pass from a scalar.

    Args:
        watch: of this process.
        by_hand: the script updates its weights by hand; None where that is not known yet.
        boundary: called at the end of each step.

    Attributes:
        losses: the step (from 0), the value, and whether `torch.autograd.grad` was asked for it.
            On an accelerator the value is a tensor until `read`: reading it would wait.
        moves: how far a sample of the weights moved in each window, relative to their size.
        ends_ns: when each step ended.
        update_count: steps of an optimizer.
        role_count: optimizers so far, those made anew in the place of others not counted.
    """

    def __init__(
        self,
        watch: Watch,
        *,
        by_hand: bool | None = None,
        boundary: Callable[[], None] = lambda: None,
    ) -> None:
        import torch
        from torch.optim import optimizer

        self.losses: list[tuple[int, Any, bool]] = []
        self.moves: list[float] = []
        self.ends_ns: list[int] = []
        self.update_count = self.role_count = self._forgotten_count = self._rest_count = 0
        self._roles = Roles()
        self._watch = watch
        self._by_hand = by_hand
        self._boundary = boundary
        self._outermost: int | None = None
        self._sample: list[Any] | None = None
        self._before: Any = None
        self._took = self._over = self._met_in_calls = False
        self._look_into_calls(True)
        names = ("backward",) if by_hand is False else ("backward", "grad")
        with ExitStack() as undo:  # all of it or nothing
            for name in names:
                differentiate = self._differentiate(name == "grad")
                undo.callback(watch.live.on_function(torch.autograd, name, differentiate))
            with own_hooks():
                undo.callback(optimizer.register_optimizer_step_pre_hook(self._begins).remove)
                undo.callback(optimizer.register_optimizer_step_post_hook(self._ends).remove)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Stop reading. The hooks are removed at the next backward pass: torch is in them now."""
        self._over = True
        self._sample = self._before = None
        self._look_into_calls(False)

    def read(self) -> None:
        """Turn all losses into numbers."""
        import torch

        waiting = [i for i, (_, value, _) in enumerate(self.losses) if not isinstance(value, float)]
        if waiting:
            values = torch.stack([self.losses[i][1].to(torch.float64) for i in waiting]).tolist()
            for i, value in zip(waiting, values, strict=True):
                self.losses[i] = (self.losses[i][0], value, self.losses[i][2])

    @property
    def step_count(self) -> int:
        """Steps so far."""
        return self._forgotten_count + len(self.ends_ns)

    def forget(self, rest_count: int) -> None:
        """Keep nothing of the steps so far, and watch only losses: a run may have millions.

        Nothing is read for `rest_count` optimizer steps: where steps are short, that costs time.
        """
        self._forgotten_count += len(self.ends_ns)
        self.losses.clear()
        self.ends_ns.clear()
        self._sample = []
        self._rest_count = 0 if self._by_hand else rest_count
        self._look_into_calls(self._met_in_calls)

    @property
    def message(self) -> dict[str, Any]:
        """What was read, for the parent."""
        self.read()
        return {"losses": self.losses, "moves": self.moves, "updates": self.update_count}

    @property
    def learns(self) -> bool:
        """Whether any optimizer has a learning rate."""
        known = self._watch.live.optimizers.known
        rates = [group.get("lr") for optimizer in list(known) for group in optimizer.param_groups]
        return any(rate is None or bool(rate > 0) for rate in rates) if rates else True

    # ---- what torch reports

    def _differentiate(self, is_grad: bool) -> Callable[..., Any]:
        def differentiate(original: Any, *args: Any, **kwargs: Any) -> Any:
            if self._over:
                self._guarded(self._undo.close)
            elif self._rest_count:
                return original(*args, **kwargs)
            elif self._watch.live.roots.inside[0]:
                self._met_in_calls = True  # the gradient of no loss
            else:
                self._guarded(self._take, differentiated(args, kwargs), is_grad)
            result = original(*args, **kwargs)
            if self._by_hand and self._took and not self._over:
                self._took = False
                self._guarded(self._end_step)
            return result

        return differentiate

    @uncompiled
    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if get_ident() != self._watch.thread:
            return
        if self._outermost is None or not steps_around():  # or the last step raised
            self._outermost = id(optimizer)
            if self._rest_count:
                return
            self.role_count = max(self.role_count, 1 + self._roles.of(optimizer))

    @uncompiled
    def _ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._outermost != id(optimizer):
            return
        self._outermost = None
        self.update_count += 1
        if self._rest_count:
            self._rest_count -= 1
            self._forgotten_count += 1
        elif not self._over and not self._by_hand:
            self._guarded(self._end_step)

    def _look_into_calls(self, wanted: bool) -> None:
        """Keep `roots.inside` up to date, or not: where no lever needs it, that costs time."""
        self._watch.live.roots.looked_into = wanted
        self._watch.live.seams_wanted()

    def _guarded(self, act: Callable[..., None], *args: Any) -> None:
        """Call `act`; a failure here must not reach the script."""
        try:
            act(*args)
        except Exception:
            self.close()

    # ---- reading

    def _take(self, losses: Sequence[Any], is_grad: bool) -> None:
        if is_capturing():
            self.close()
            return
        for tensor in losses:
            if tensor.numel() == 1 and not tensor.is_complex():
                value = tensor.detach()
                kept = float(value.item()) if value.is_cpu else value.clone().reshape(())
                self.losses.append((self.step_count, kept, is_grad))
                self._took = True
        if len(self.losses) > _MOST_LOSSES_COUNT:
            self.close()

    def _end_step(self) -> None:
        if is_capturing():
            self.close()
            return
        self.ends_ns.append(time.perf_counter_ns())
        count = self.step_count
        if count == 1 or count % WINDOW_COUNT == 0:
            self._measure_move()
        self._boundary()

    def _measure_move(self) -> None:
        """Compare a sample of the weights with the same one a window ago."""
        import torch

        if self._sample is None:
            self._sample = self._choose()
        if not self._sample:
            return
        with torch.no_grad():
            now = torch.cat([_read_some(parameter).float() for parameter in self._sample])
            if self._before is not None:
                size = max(float(self._before.norm()), 1e-12)
                self.moves.append(float((now - self._before).norm()) / size)
            self._before = now

    def _choose(self) -> list[Any]:
        """Choose a few of the tensors that the optimizers and root modules train."""
        live = self._watch.live
        held = [p for optimizer in list(live.optimizers.known) for p in parameters_of(optimizer)]
        held += [p for module in list(live.roots.known) for p in weights_of(module)]
        return _spread(list({id(p): p for p in held}.values()))


def _spread(parameters: Sequence[Any]) -> list[Any]:
    """Return a few of the trained tensors, evenly spread and all on one device."""
    import torch

    trained = [
        p for p in parameters
        if p.requires_grad and p.is_floating_point() and p.layout == torch.strided
    ]  # fmt: skip
    trained = [p for p in trained if p.device == trained[0].device]
    return trained[:: max(1, -(-len(trained) // _TENSOR_COUNT))]


def _read_some(parameter: Any) -> Any:
    """Return a copy of some values of a tensor, the same ones in any memory layout."""
    part = parameter.detach()
    while part.dim() > 1 and part.numel() > _SLICE_COUNT:
        part = part[len(part) // 2]
    return part.reshape(-1)[:_VALUE_COUNT].clone()
