"""fp32_precision: keep tensors float32, but multiply them with fewer bits internally.

Helps: large matrix products and convolutions: bf16 inside oneDNN on CPUs with AMX
    (convolutions and recurrent layers since torch 2.9), tf32 on CUDA cards since Ampere, whose
    convolutions use it already.
Hurts: little. Without such units nothing is rounded, but oneDNN may multiply matrices in
    place of another library, faster or slower. A script that sets any of these precisions
    itself keeps what it set.
Maths: precision. The inputs of products are rounded to 8 (bf16) or 11 (tf32) bits of mantissa;
    sums, activations, weights and gradients stay float32.
Source: https://docs.pytorch.org/docs/stable/notes/mkldnn.html
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hasten.lever import Lever, one_of, undo_all
from hasten.records import Effect, Phase, Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training

_LEAST_RATIO = 1.2
_LIKELY_RATIO = 1.5
_KINDS = {"cpu": "bf16", "cuda": "tf32"}
# The words of torch's older setting, which scripts and libraries still read: where only the
# newer one is set, torch refuses to answer them.
_OLDER = {"bf16": "medium", "tf32": "high"}
_EPSILONS = {"bf16": 2.0**-8, "tf32": 2.0**-11}
_UNTOUCHED = ("none", "ieee")


def settings(context: ScriptContext) -> tuple[str, ...]:
    """Return the narrower format of the model's device if the probe found it faster."""
    kind = _kind(context)
    return () if kind is None or why_not(context) else (kind,)


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try, with what the probe measured; empty where there is."""
    model, ratio = context.traits.model, _ratio(context)
    own = context.traits.precision.matmul or "highest"
    if model.device is None or model.dtype is None:
        return "no call of a model with weights was seen"
    if model.dtype != "float32":
        return f"the model's dtype is {model.dtype}, not float32"
    if own != "highest":
        return f"the script sets the precision of float32 products itself ({own})"
    if ratio is None:
        return f"reduced-precision products were not timed on this {model.device}"
    if ratio >= _LEAST_RATIO:
        return ""
    faster = f"only {ratio:.2f}x faster" if ratio >= 1 else f"{1 / ratio:.3g}x slower"
    return f"float32 products are {faster} with {_kind(context)} here"


def promising(context: ScriptContext) -> bool:
    """Return whether the products are faster by enough for most models to gain."""
    return (_ratio(context) or 0.0) >= _LIKELY_RATIO


def _kind(context: ScriptContext) -> str | None:
    return _KINDS.get(context.traits.model.device or "")


def _ratio(context: ScriptContext) -> float | None:
    """Return the best speedup of fewer bits among the kinds of product in this model."""
    inside = context.traits.precision.inside
    return inside.best_ratio(context.traits.model) if _kind(context) else None


def _set_products(setting: str) -> Callable[[], None] | None:
    """Set the precision of matrix products by torch's older setting, which every release has."""
    import torch

    onednn, cuda, word = torch.backends.mkldnn, torch.backends.cuda, _OLDER[setting]
    try:
        if torch.get_float32_matmul_precision() != "highest":
            return None
    except RuntimeError:  # the script uses torch's newer settings
        return None
    own, own_cuda = _read(onednn, "matmul"), _read(cuda, "matmul")
    torch.set_float32_matmul_precision(word)
    if setting == "tf32":  # else torch takes a script that sets CUDA's alone for a mix of settings
        _write_products(onednn, own)
    ours, ours_cuda = _read(onednn, "matmul"), _read(cuda, "matmul")

    def undo() -> None:
        if _read(onednn, "matmul") == ours:
            _write_products(onednn, own)
        with suppress(RuntimeError):
            if torch.get_float32_matmul_precision() != word:
                return  # the script has set another one meanwhile
            now = _read(cuda, "matmul")
            torch.set_float32_matmul_precision("highest")
            _write_products(onednn, own)
            _write_products(cuda, own_cuda if now == ours_cuda else now)

    return undo


def _write_products(owner: Any, precision: str | None) -> None:
    """Set the precision of a backend's matrix products, where this torch has one for it."""
    if precision is not None:
        owner.matmul.fp32_precision = precision


def _set_onednn(name: str, setting: str) -> Callable[[], None] | None:
    """Set the precision of one kind of oneDNN's operations, which only newer releases have."""
    import torch

    own = _read(torch.backends.mkldnn, name)
    if own not in _UNTOUCHED:
        return None
    part = getattr(torch.backends.mkldnn, name)
    part.fp32_precision = setting

    def undo() -> None:
        if part.fp32_precision == setting:
            part.fp32_precision = own

    return undo


def _read(owner: Any, name: str) -> str | None:
    """Return the precision of one kind of operation; None where this torch has none for it."""
    precision = getattr(getattr(owner, name, None), "fp32_precision", None)
    return None if precision is None else str(precision)


def apply(training: Training, setting: str) -> Callable[[], None]:
    """Set what the script has left alone; what it sets from then on takes precedence."""
    undos = [_set_products(setting)]
    if setting == "bf16":
        undos += [_set_onednn(name, setting) for name in ("conv", "rnn")]
    return undo_all([undo for undo in undos if undo is not None])


LEVER = Lever(
    name="fp32_precision",
    phases=frozenset({Phase.FORWARD, Phase.LOSS, Phase.BACKWARD}),
    effect=Effect.PRECISION,
    scope=Scope.STEP,
    kind=str,
    validate=one_of(*_OLDER),
    epsilon_ratio=lambda setting: _EPSILONS[setting],
    settings=settings,
    gain_ratio=7.0,
    why_not=why_not,
    snippet=lambda setting: "\n".join(
        [
            f'torch.set_float32_matmul_precision("{_OLDER[setting]}")',
            *(
                f'torch.backends.mkldnn.{kind}.fp32_precision = "bf16"  # since torch 2.9'
                for kind in ("conv", "rnn")
                if setting == "bf16"
            ),
        ]
    ),
    promising=promising,
    settle_count=1,
    apply=apply,
    edit="process.fp32_precision",
    cures=frozenset({"tf32-off"}),
)
