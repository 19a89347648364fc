"""What the models of a script are made of, for the levers' `settings`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hasten.instrument.object_table import Table
from hasten.instrument.probes import can_tell_layout, fewer_bits, fp32_precision, with_channels_last
from hasten.instrument.stand_ins import stand_in_later
from hasten.modules import weights_of
from hasten.records import ModelTraits, PrecisionTraits, ProductSpeed, Traits

if TYPE_CHECKING:
    from collections.abc import Callable

_KERNEL_DIMENSION_COUNT = 4  # at least, of a convolution with two dimensions or three


class ModelFacts:
    """Notes about every root module that the loop calls, and how the machine runs them.

    Attributes:
        why_unshared: says why no call of a module can be shared; empty if one may be.
    """

    def __init__(self) -> None:
        self.found = ModelTraits()
        self.why_unshared: Callable[[Any], str] = lambda _: ""
        self._roots = Table()
        self._ranks: set[int] = set()
        self._uses_autocast = False  # around a model or in it
        home = "torch.amp.autocast_mode"
        self._undo = stand_in_later(home, "autocast.__enter__", self._entered)
        self._speeds: dict[str, ProductSpeed] | None = None

    def _entered(self, original: Any, context: Any) -> Any:
        self._uses_autocast = self._uses_autocast or bool(getattr(context, "_enabled", True))
        return original(context)

    def called(self, module: Any, args: Any = ()) -> None:
        """Look at a root module, and at its first input, when it is called for the first time."""
        from torch import Tensor

        if module in self._roots:
            return
        self._roots[module] = None
        parts = list(module.modules())
        weights = list(weights_of(module))
        if weights:
            self._ranks.add(args[0].dim() if args and isinstance(args[0], Tensor) else 0)
        if weights and self.found.parameter_count is None:
            self.found = replace(self.found, parameter_count=sum(p.numel() for p in weights))
        self._note_layers(parts)
        self._note_numbers([weight for weight in weights if weight.is_floating_point()])

    def add(self, traits: Traits) -> Traits:
        """Return traits with the notes, and the speed of fewer bits on the models' device."""
        self._undo()
        matmul = fp32_precision()
        if self.found.device is not None and self._speeds is None:
            self._speeds = fewer_bits(self.found.device)
        if self._ranks and (self.found.has_conv2d or self.found.has_conv3d):
            count = min(self._ranks) if len(self._ranks) == 1 else 0
            self.found = replace(self.found, conv_input_dimension_count=count)
        precision = PrecisionTraits(
            uses_autocast=self._uses_autocast, matmul=matmul, **(self._speeds or {})
        )
        return replace(traits, model=self.found, precision=precision)

    def add_unshared(self, traits: Traits) -> Traits:
        """Return traits with why no module with weights can be shared, if none can."""
        why = ""
        for root in self._roots:
            if next(weights_of(root), None) is not None:
                why = self.why_unshared(root)
                if not why:
                    return traits
        return replace(traits, model=replace(traits.model, unshared=why))

    def _note_layers(self, parts: list[Any]) -> None:
        from torch import nn

        flat = [part for part in parts if isinstance(part, (nn.Conv2d, nn.ConvTranspose2d))]
        solid = [part for part in parts if isinstance(part, (nn.Conv3d, nn.ConvTranspose3d))]
        self.found = replace(
            self.found,
            has_conv2d=self.found.has_conv2d or bool(flat),
            has_conv3d=self.found.has_conv3d or bool(solid),
        )
        # Not by name: that of a parametrized layer is computed, which may change its buffers.
        held = [weight for part in (*flat, *solid) for weight in weights_of(part)]
        self._note_layouts([weight for weight in held if weight.dim() >= _KERNEL_DIMENSION_COUNT])

    def _note_layouts(self, kernels: list[Any]) -> None:
        """Note whether all kernels whose layout is unambiguous have channels last."""
        last = [with_channels_last(k) for k in kernels if can_tell_layout(k)]
        if last:
            so_far = self.found.has_channels_last is not False
            self.found = replace(self.found, has_channels_last=so_far and all(last))

    def _note_numbers(self, weights: list[Any]) -> None:
        if not weights:
            return
        names = {str(weight.dtype).removeprefix("torch.") for weight in weights}
        names.add(self.found.dtype or min(names))
        self.found = replace(
            self.found,
            dtype="mixed" if len(names) > 1 else names.pop(),
            device=self.found.device or weights[0].device.type,
        )
