"""What a script does around its update: how it zeroes, clips and averages; for the levers."""

from __future__ import annotations

from functools import wraps
from typing import Any
from weakref import ref

from hasten.instrument.accelerators import is_capturing

_LOOKED_AT_COUNT = 8


class UpdateWatch:
    """Notice zeroed gradients, clippings and averaged models until the traits are read."""

    def __init__(self) -> None:
        from torch.nn.utils import clip_grad
        from torch.optim import swa_utils

        self._found: dict[str, Any] = {}
        self._clip_count = self._idle_count = 0
        self._optimizer: Any = lambda: None
        self._step_begins = False
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._replace(clip_grad, "_clip_grads_with_norm_", self._clipping)
        self._replace(swa_utils.AveragedModel, "__init__", self._averaging)

    def _replace(self, owner: Any, name: str, make: Any) -> None:
        original = vars(owner).get(name)
        if original is not None:
            noting = make(original)
            setattr(owner, name, noting)
            self._replaced.append((owner, name, original, noting))

    def _clipping(self, original: Any) -> Any:
        @wraps(original)
        def clip(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kw: Any) -> Any:
            if self._replaced and total_norm.is_cpu:
                self._clip_count += 1
                self._idle_count += bool(max_norm / (total_norm + 1e-6) >= 1)
            return original(parameters, max_norm, total_norm, *args, **kw)

        return clip

    def _averaging(self, original: Any) -> Any:
        from torch.optim import swa_utils

        make: Any = swa_utils.get_ema_avg_fn
        own = getattr(make(), "__wrapped__", None)

        @wraps(original)
        def construct(averaged: Any, *args: Any, **kwargs: Any) -> None:
            original(averaged, *args, **kwargs)
            average = getattr(averaged.__dict__.get("avg_fn"), "__wrapped__", None)
            if own is not None and getattr(average, "__code__", None) is own.__code__:
                self._found["average.loop"] = True

        return construct

    def steps(self, optimizer: Any) -> None:
        """Note the first optimizer."""
        if self._optimizer() is None:
            self._optimizer = ref(optimizer)

    def ended(self) -> None:
        """A step has ended: the next backward pass is the first of a step."""
        self._step_begins = True

    def backward(self) -> None:
        """Look once whether gradients lie there as zeros, before the pass that adds to them."""
        optimizer = self._optimizer()
        if optimizer is None or not self._step_begins or "optimizer.zero_filled" in self._found:
            return
        if is_capturing():
            return
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        there = [g for g in gradients if g is not None and not g.is_sparse]
        self._found["optimizer.zero_filled"] = bool(there) and not any(
            bool(gradient.any()) for gradient in there[:_LOOKED_AT_COUNT]
        )

    def read(self) -> dict[str, Any]:
        """Return what was found, and look no longer."""
        for owner, name, original, noting in self._replaced:
            if vars(owner).get(name) is noting:
                setattr(owner, name, original)
        if self._replaced:
            self._replaced = []
            if self._clip_count:
                self._found["clip.idle_ratio"] = self._idle_count / self._clip_count
        return dict(self._found)
