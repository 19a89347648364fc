"""channels_last: compute convolutions in NHWC layout (NDHWC in 3-D).

Helps: convolutional networks, on CPUs with oneDNN and on tensor cores.
Hurts: models with few convolutions, and models that reshape, slice or drop feature maps between
    them: each change of layout is a copy. Small kernels pay a few microseconds per operation.
    A model that learns is evaluated as the script does it.
Maths: rounding. Another convolution kernel sums in another order. Only activations change their
    layout, and only inside a root call: weights, gradients, moments, inputs and outputs keep the
    script's. All that can see a layout or share memory (views, NumPy, strides, random masks) sees
    the script's own. A script that names streams is left alone where its model is on a device.
Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hasten.lever import Lever, undo_all, unless
from hasten.modules import weights_of
from hasten.records import Effect, Phase, Scope
from hasten.root_calls.fit import compiled_by_script, plain_surroundings
from hasten.root_calls.layouts import Activations, guard_kind
from hasten.root_calls.own_code import STREAMS, mention

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training

_BEYOND_SIGHT = (("torch", "compile"), ("torch.jit", "script"), ("torch.jit", "trace"))
"""Functions that make code whose operations cannot be followed."""
_PAST_TORCH = (("torch.utils.dlpack", "to_dlpack"), ("torch", "to_dlpack"))
"""Functions that share a tensor's memory and that no mode sees."""
_LIBRARIES = ("torch", "torchvision", "hasten")
_COMPILES = "the script compiles code, which hides its operations"


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    traits = context.traits
    if traits.model.has_channels_last:
        return "the script gives its convolutions this layout already"
    if traits.compiler.is_used:
        return "the script uses torch.compile, which chooses layouts itself"
    if traits.model.has_conv2d or traits.model.has_conv3d:
        return ""
    return "the model has no 2-D or 3-D convolution"


def _takes_fast_path(module: Any) -> bool:
    """Return whether attention may take torch's fast path, which it never does under a mode.

    In evaluation that path leaves zeros where the input is padded.
    """
    from torch import nn

    kinds = nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention
    return any(not part.training and isinstance(part, kinds) for part in module.modules())


def _unfit(module: Any) -> str | None:
    """Say why a root stays as it is, empty where nothing need be said; None for one that fits."""
    import torch
    from torch import nn

    parts = list(module.modules())
    if any(isinstance(part, (nn.DataParallel, torch.jit.ScriptModule)) for part in parts):
        return "parts of the model run outside of Python or in other threads"
    if any(compiled_by_script(part) for part in parts):
        return "the script compiles parts of the model itself"
    kinds = (nn.Conv2d, nn.ConvTranspose2d, nn.Conv3d, nn.ConvTranspose3d)
    return None if any(isinstance(part, kinds) for part in parts) else ""


class _Roots:
    """Make root calls with channels last, and leave alone those that cannot be followed."""

    def __init__(self, training: Training) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._training = training
        self._left: Any = WeakIdKeyDictionary()  # modules may be equal
        self._learning: Any = WeakIdKeyDictionary()
        self._stopped = ""
        self._told = False
        self._scripted_count = 0
        self._running: Activations | None = None
        self._plain = plain_surroundings()
        self._kind = guard_kind()

    def stop(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Leave all roots alone where the script makes code that cannot be followed."""
        asker = str(sys._getframe(2).f_globals.get("__name__"))  # behind the stand-in
        if asker.partition(".")[0] not in _LIBRARIES:
            self._stopped = _COMPILES
        if getattr(original, "__name__", "") == "script":  # it looks names up in its caller
            kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 2
        return original(*args, **kwargs)

    def apply(self, original: Any, made: Any) -> None:
        """Leave a root alone from now on: it calls a `torch.autograd.Function` of the script's."""
        is_ours = type(made)._forward_cls.__module__.startswith("hasten.")
        if self._running is not None and not is_ours:
            self._running.refuse("its code has a backward pass of its own")
        original(made)

    def share(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Restore the script's layout of a tensor that is about to share its memory."""
        if self._running is not None:
            self._running.show((args, kwargs))
        return original(*args, **kwargs)

    def call(self, module: Any, call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """Make a root call."""
        if module not in self._left:
            self._look_at_script(module)
            self._left[module] = _unfit(module)
        self._look_for_scripts()
        if self._evaluates(module) or self._stopped or not self._plain():
            return call(args, kwargs)
        if self._left[module] is not None:
            return call(args, kwargs)
        if _takes_fast_path(module):
            return call(args, kwargs)
        self._running = activations = Activations()
        try:
            with self._kind(activations.answer):
                result = call(args, kwargs)
        finally:
            self._running = None
            activations.settle()
        if activations.refused:
            self._left[module] = activations.refused
            if None not in self._left.values():
                self._excuse(activations.refused)
        return result

    def _evaluates(self, module: Any) -> bool:
        """Return whether a model that learns is evaluated: trials time its training alone.

        The gain is mostly that of the backward pass; small batches are slower without it.
        """
        import torch

        if torch.is_grad_enabled():
            self._learning[module] = True
            return False
        return module in self._learning and not module.training

    def _look_at_script(self, module: Any) -> None:
        """Stop if the script may see the views that this lever makes, or use them too early."""
        is_on_device = any(not weight.is_cpu for weight in weights_of(module))
        if not len(self._left) and (where := mention(("next_functions", "make_dot"))):
            self._stopped = f"its graph is looked at: {where}"
        elif is_on_device and not self._stopped and (where := mention(STREAMS)):
            self._stopped = f"several streams may use its activations: {where}"

    def _look_for_scripts(self) -> None:
        """Stop if the script has compiled functions to TorchScript; torch does so, too."""
        import torch

        scripted: Any = getattr(torch.jit._state, "_jit_caching_layer", ())
        if len(scripted) != self._scripted_count:
            self._scripted_count = len(scripted)
            if any(
                not one.__module__.startswith(("torch.", "torchvision.")) for one in list(scripted)
            ):
                self._stopped = _COMPILES
        if self._stopped and not self._told:
            self._excuse(self._stopped)

    def _excuse(self, reason: str) -> None:
        self._told = True
        self._training.excuse(RuntimeError(f"the model keeps its own layout: {reason}"))


def apply(training: Training, setting: bool) -> Callable[[], None]:
    """Follow the operations of root calls, and give convolutions their inputs in this layout."""
    import torch
    from torch.autograd.function import BackwardCFunction

    roots = _Roots(training)
    undos = [training.on_function(owner, name, roots.stop) for owner, name in _BEYOND_SIGHT]
    undos += [training.on_function(owner, name, roots.share) for owner, name in _PAST_TORCH]
    undos.append(training.on_function(torch.Tensor, "_make_subclass", roots.share))
    undos.append(training.on_function(BackwardCFunction, "__init__", roots.apply))
    return undo_all([*undos, training.on_call(roots.call, innermost=2)])


LEVER = Lever(
    name="channels_last",
    phases=frozenset({Phase.FORWARD, Phase.BACKWARD}),
    effect=Effect.ROUNDING,
    scope=Scope.STEP,
    settings=unless(why_not, True),
    gain_ratio=2.0,
    why_not=why_not,
    snippet=lambda _: (
        "# 3-D convolutions: torch.channels_last_3d\n"
        "model = model.to(memory_format=torch.channels_last)\n"
        "images = images.to(memory_format=torch.channels_last)\n"
        "# where the model calls .view on feature maps: .reshape"
    ),
    saved_fact="operations.layout_s",
    settle_count=1,
    apply=apply,
    edit="models.channels_last",
    cures=frozenset({"slow-layout"}),
)
