"""autocast: matrix products and convolutions of the model in bfloat16, everything else as it was.

Helps: models with large matrix products or convolutions, on a processor that multiplies bfloat16
    faster than float32: tensor cores, AMX, AVX512_BF16.
Hurts: processors without such units, where bfloat16 is many times slower; small models, which
    spend the gain on converting their weights in every call. A loss that the script computes
    outside the model, its metrics and every call without gradients (evaluation) stay as they
    are; objects of unknown classes are returned with bfloat16 tensors still in them.
Maths: precision. Products take inputs with 8 bits of mantissa instead of 24 and accumulate in
    float32; weights, gradients, optimizer and outputs stay float32. float16 is not offered: it
    needs a gradient scaler in the script's own loop.
Source: https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hasten.lever import Lever, one_of, unless
from hasten.records import Effect, Phase, Scope
from hasten.root_calls.values import with_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training

_UNITS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# Below this, converting weights and activations eats up the gain.
_LEAST_RATIO = 1.2
_LIKELY_RATIO = 1.5
_EPSILONS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try, with what the probe measured; empty where there is."""
    dtype, ratio = context.traits.model.dtype, _ratio(context)
    if context.traits.precision.uses_autocast:
        return "the script uses autocast itself"
    if dtype is None:
        return "no call of a model with weights was seen"
    if dtype != "float32":
        return f"the model's dtype is {dtype}, not float32"
    if ratio is None:
        return f"bf16 was not timed on this {context.traits.model.device or 'device'}"
    has_units = _has_units(context)
    if has_units and ratio >= _LEAST_RATIO:
        return ""
    cause = "" if has_units else ": the CPU has no hardware for it"
    if ratio < 1:
        return f"bf16 is {1 / ratio:.3g}x slower than fp32 here{cause}"
    return f"bf16 is only {ratio:.2f}x faster than fp32 here{cause}"


def promising(context: ScriptContext) -> bool:
    """Return whether the products are faster by enough for most models to gain."""
    return (_ratio(context) or 0.0) >= _LIKELY_RATIO


def _ratio(context: ScriptContext) -> float | None:
    """Return the best speedup of bf16 among the kinds of product in this model."""
    return context.traits.precision.bf16.best_ratio(context.traits.model)


def _has_units(context: ScriptContext) -> bool:
    """Return whether the hardware multiplies bf16; where that is not listed, the probe decides."""
    sets = context.machine.cpu.instruction_sets
    return context.traits.model.device != "cpu" or not sets or bool(_UNITS & set(sets))


def _device(module: Any) -> str | None:
    """Return the type of device of a float32 model, None for any other and for losses."""
    import torch

    first = next((p for p in module.parameters() if p.is_floating_point()), None)
    if first is None or first.dtype != torch.float32:
        return None
    kind = str(first.device.type)
    return kind if torch.amp.is_autocast_available(kind) else None


def _call(narrow: Any, module: Any, call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
    """Make a root call under autocast; the context is closed before any backward pass.

    Casts of weights are not cached: one made under `no_grad` inside the call would be reused
    with gradients, and its weight would get none.
    """
    import torch

    device = _device(module)
    if device is None or not torch.is_grad_enabled() or torch.is_autocast_enabled(device):
        return call(args, kwargs)
    with torch.autocast(device, dtype=narrow, cache_enabled=False):
        answer = call(args, kwargs)
    return with_tensors(answer, lambda t: t.to(torch.float32) if t.dtype == narrow else t)


def apply(training: Training, setting: str) -> Callable[[], None]:
    """Put every root call with gradients under autocast."""
    import torch

    return training.on_call(partial(_call, getattr(torch, setting)))


LEVER = Lever(
    name="autocast",
    phases=frozenset({Phase.FORWARD, Phase.BACKWARD}),
    effect=Effect.PRECISION,
    scope=Scope.STEP,
    kind=str,
    validate=one_of(*_EPSILONS),
    epsilon_ratio=lambda setting: _EPSILONS[setting],
    settings=unless(why_not, "bfloat16"),
    gain_ratio=3.0,
    why_not=why_not,
    snippet=lambda setting: (
        "with torch.autocast(device.type, dtype=torch."
        f"{setting}):  # not around backward()\n"
        "    outputs = model(inputs)\n"
        "outputs = outputs.float()"
    ),
    promising=promising,
    settle_count=1,
    apply=apply,
    edit="autocast.autocast",
)
