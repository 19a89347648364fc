"""autocast: products of the model in bfloat16 or float16, everything else as it was.

Helps: models with large matrix products or convolutions, on a processor that multiplies 16 bits
    faster than 32: tensor cores, AMX, AVX512_BF16. float16 is offered only on NVIDIA GPUs older
    than Ampere (T4, V100, RTX 20), which have no units for bfloat16; it was not run on a GPU.
Hurts: processors without such units, where bfloat16 is many times slower; small models, which
    spend the gain on converting their weights in every call. A loss that the script computes
    outside the model, its metrics and every call without gradients (evaluation) stay as they
    are; objects of unknown classes are returned with 16-bit tensors still in them. With
    float16, each step of an optimizer that is not fused waits for the device, and a script that
    stops at a gradient that is not finite stops at the first that overflows.
Maths: precision. Products take inputs with 8 bits of mantissa (float16: 11) instead of 24 and
    accumulate in float32; weights, gradients, optimizer and outputs stay float32. float16 has few
    exponents, so losses are scaled during the backward pass: the script sees unscaled gradients. A
    step whose gradients overflowed changes no weight, and the scale is halved. Not for scripts
    that update by hand or in closures, that call `autograd.grad`, or whose hooks would see the
    scale. On an accelerator models with `BCELoss` or `binary_cross_entropy` in them are left alone:
    autocast refuses these there.
Source: https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.lever import Lever, one_of, undo_all
from hasten.modules import weights_of
from hasten.records import Effect, Phase, Scope
from hasten.root_calls.loss_scaling import scaling_for
from hasten.root_calls.own_code import find_word
from hasten.root_calls.values import with_tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

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
    has_units, is_half = _has_units(context), _setting(context) == "float16"
    if has_units and ratio >= _LEAST_RATIO:
        return _why_not_scaled(context) if is_half else ""
    cause = "" if has_units else ": the CPU has no hardware for it"
    name = "fp16" if is_half else "bf16"
    if ratio < 1:
        return f"{name} is {1 / ratio:.3g}x slower than fp32 here{cause}"
    return f"{name} is only {ratio:.2f}x faster than fp32 here{cause}"


def _why_not_scaled(context: ScriptContext) -> str:
    name = context.traits.optimizer.name
    if name is None:
        return "the script updates its weights by hand, where gradients that overflow would be used"
    if name == "LBFGS":
        return "LBFGS cannot leave out a step whose gradients overflow in float16"
    if context.traits.rank_count > 1:
        return "ranks add up their gradients while these are scaled, each by a scale of its own"
    return ""


def settings(context: ScriptContext) -> tuple[str, ...]:
    """Return the 16-bit type that the device multiplies fast."""
    return () if why_not(context) else (_setting(context),)


def promising(context: ScriptContext) -> bool:
    """Return whether the products are faster by enough for most models to gain."""
    return (_ratio(context) or 0.0) >= _LIKELY_RATIO


def _ratio(context: ScriptContext) -> float | None:
    """Return the best speedup of 16 bits among the kinds of product in this model."""
    precision, model = context.traits.precision, context.traits.model
    half = precision.fp16.best_ratio(model)
    return half if half is not None else precision.bf16.best_ratio(model)


def _setting(context: ScriptContext) -> str:
    """Return the type that was timed here: float16 only where there are no units for bfloat16."""
    half = context.traits.precision.fp16.best_ratio(context.traits.model)
    return "bfloat16" if half is None else "float16"


def _has_units(context: ScriptContext) -> bool:
    """Return whether the hardware multiplies bf16; where that is not listed, the probe decides."""
    sets = context.machine.cpu.instruction_sets
    return context.traits.model.device != "cpu" or not sets or bool(_UNITS & set(sets))


def _device(module: Any) -> str | None:
    """Return the type of device of a float32 model, None for any other and for losses."""
    import torch

    first = next((p for p in weights_of(module) if p.is_floating_point()), None)
    if first is None or first.dtype != torch.float32:
        return None
    kind = str(first.device.type)
    return kind if torch.amp.is_autocast_available(kind) else None


class _Autocast:
    """Root calls under autocast; the context is closed before any backward pass.

    Casts of weights are not cached: one made under `no_grad` inside the call would be reused
    with gradients, and its weight would get none.
    """

    def __init__(self, narrow: Any, excuse: Callable[[Exception], None]) -> None:
        self._narrow = narrow
        self._excuse = excuse
        self._refused: str | None = None
        self._own: dict[int, frozenset[tuple[int, str]]] = {}

    def meet(self, module: Any) -> None:
        """Note what a model keeps that is narrow before its first call."""
        self._own[id(module)] = frozenset(self._kept_by(module))

    def call(self, module: Any, call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """Make a root call."""
        import torch

        narrow, device = self._narrow, _device(module)
        if device is None or not torch.is_grad_enabled() or torch.is_autocast_enabled(device):
            return call(args, kwargs)
        if device != "cpu" and self._is_refused(module):
            return call(args, kwargs)
        with torch.autocast(device, dtype=narrow, cache_enabled=False):
            answer = call(args, kwargs)
        self._widen(module)
        return with_tensors(answer, lambda t: t.to(torch.float32) if t.dtype == narrow else t)

    def _is_refused(self, module: Any) -> bool:
        """Return whether a call may compute a loss that autocast refuses but on a CPU."""
        import torch

        if self._refused is None:
            self._refused = find_word(_refused_loss)
            if self._refused:
                self._excuse(RuntimeError(f"autocast refuses a loss: {self._refused}"))
        parts = module.modules()
        return bool(self._refused) or any(isinstance(part, torch.nn.BCELoss) for part in parts)

    def _widen(self, module: Any) -> None:
        """Turn what the model keeps of a call into float32: a script may read `model.loss`.

        What is in containers stays, since the script may hold these, and so does what was narrow
        before the first call.
        """
        for key, state in self._kept_by(module).items():
            if key not in self._own[id(module)]:
                state[key[1]] = state[key[1]].float()

    def _kept_by(self, module: Any) -> dict[tuple[int, str], dict[str, Any]]:
        """Return where a model keeps narrow tensors: for part and name, the part's attributes."""
        import torch

        return {
            (id(part), name): vars(part)
            for part in module.modules()
            for name, value in vars(part).items()
            if type(value) is torch.Tensor and value.dtype == self._narrow
        }


def _refused_loss(code: CodeType) -> str:
    name = "binary_cross_entropy"
    return name if code.co_name == "forward" and name in code.co_names else ""


def apply(training: Training, setting: str) -> Callable[[], None]:
    """Put every root call with gradients under autocast; scale its losses for float16."""
    import torch

    narrowed = _Autocast(getattr(torch, setting), training.excuse)
    met = training.on_root(narrowed.meet)
    if setting != "float16":
        return undo_all([training.on_call(narrowed.call), met])
    scaling = scaling_for(training)

    def scaled(module: Any, call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        if scaling.admits(module):
            return narrowed.call(module, call, args, kwargs)
        return call(args, kwargs)

    undos = scaling.attach(training)
    return undo_all([training.on_call(scaled), met, *undos])


def snippet(setting: str) -> str:
    """Return the lines that do it by hand."""
    lines = (
        f"with torch.autocast(device.type, dtype=torch.{setting}):  # not around backward()\n"
        "    outputs = model(inputs)\n"
        "outputs = outputs.float()"
    )
    if setting != "float16":
        return lines
    return (
        "scaler = torch.amp.GradScaler(device.type)\n"
        f"{lines}\n"
        "scaler.scale(loss).backward()\n"
        "scaler.unscale_(optimizer)  # before gradients are clipped or read\n"
        "scaler.step(optimizer)\n"
        "scaler.update()"
    )


LEVER = Lever(
    name="autocast",
    phases=frozenset({Phase.FORWARD, Phase.BACKWARD}),
    effect=Effect.PRECISION,
    scope=Scope.STEP,
    kind=str,
    validate=one_of(*_EPSILONS),
    epsilon_ratio=lambda setting: _EPSILONS[setting],
    settings=settings,
    gain_ratio=3.0,
    why_not=why_not,
    snippet=snippet,
    promising=promising,
    settle_count=1,
    apply=apply,
    edit="autocast.autocast",
)
