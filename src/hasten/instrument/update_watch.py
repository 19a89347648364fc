"""How a script clips its gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from hasten.instrument.stand_ins import put

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.records import Traits


class UpdateWatch:
    """Notice clippings until the traits are read."""

    def __init__(self) -> None:
        from torch.nn.utils import clip_grad

        self._clip_count = self._idle_count = 0
        self._undo: Callable[[], None] | None = None
        name = "_clip_grads_with_norm_"
        if original := vars(clip_grad).get(name):
            self._undo = put(clip_grad, name, self._clipping(original))

    def _clipping(self, original: Any) -> Any:
        @wraps(original)
        def clip(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kw: Any) -> Any:
            if self._undo and total_norm.is_cpu:
                self._clip_count += 1
                self._idle_count += bool(max_norm / (total_norm + 1e-6) >= 1)
            return original(parameters, max_norm, total_norm, *args, **kw)

        return clip

    def add(self, traits: Traits) -> Traits:
        """Return traits with what was found, and look no longer."""
        if self._undo is not None:
            self._undo()
            self._undo = None
        ratio = self._idle_count / self._clip_count if self._clip_count else None
        return replace(traits, idle_clip_ratio=ratio)
