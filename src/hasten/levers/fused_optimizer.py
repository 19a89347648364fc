"""fused_optimizer: one kernel for the whole update instead of several per parameter.

Helps: models with many parameters, where the update is a loop over tensors in Python.
Hurts: little; torch leaves it off by default because the kernels are newer.
Maths: rounding. The kernel keeps intermediate values that the loop rounds.
Source: https://github.com/pytorch/pytorch/pull/123074
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.lever import OPTIMIZER, Lever, unless
from hasten.loader.device.staging import is_dense
from hasten.modules import is_known
from hasten.records import Effect, Phase, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.lever import ScriptContext, Training

_FUSABLE = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})
_DEVICES = frozenset({"cpu", "cuda"})
_CPU_ALONE = frozenset({"Adagrad"})
# In fewer bits torch's kernel of SGD for the CPU loses nearly all of an update (torch 2.13).
_CPU_DTYPES = frozenset({"float32", "float64"})


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    name, model = context.traits.optimizer.name, context.traits.model
    if name is None:
        return "the script updates its weights by hand"
    if name in _CPU_ALONE and model.device not in (None, "cpu"):
        return f"torch has no fused {name} for {model.device}"
    if name not in _FUSABLE:
        return f"torch has no fused {name}"
    if context.traits.optimizer.has_sparse_gradients:
        return f"torch has no fused {name} for sparse gradients"
    if model.device == "cpu" and model.dtype not in {*_CPU_DTYPES, "mixed", None}:
        return f"torch's fused {name} is not right for {model.dtype} on a CPU"
    return f"{name} is fused already" if context.traits.optimizer.is_fused else ""


def _plain(parameter: Any) -> bool:
    """Return whether the kernels accept a parameter: real, dense, and of no subclass."""
    import torch

    on_cpu, dtype = parameter.device.type == "cpu", str(parameter.dtype).removeprefix("torch.")
    return (
        type(parameter) in (torch.nn.Parameter, torch.Tensor)
        and torch.is_floating_point(parameter)
        and parameter.device.type in _DEVICES
        and (dtype in _CPU_DTYPES or not on_cpu)
        and (parameter.grad is None or parameter.grad.layout is torch.strided)
    )


def _alike(one: Any, other: Any) -> bool:
    return bool(one.stride() == other.stride()) or (one.is_contiguous() and other.is_contiguous())


def _laid_out_alike(parameter: Any, state: Mapping[str, Any]) -> bool:
    """Return whether gradient and moments match the weight in kind and in memory layout.

    The kernels walk through all of them in step, and silently go wrong where they differ, or where
    a weight is a column of something larger.
    Torch's loop converts a moment of another dtype or shape, or says what is wrong with it.
    """
    import torch

    beside = [parameter.grad, *state.values()]
    return is_dense(parameter.shape, parameter.stride()) and all(
        tensor.shape == parameter.shape
        and tensor.dtype == parameter.dtype
        and _alike(parameter, tensor)
        for tensor in beside
        if isinstance(tensor, torch.Tensor) and tensor is not state.get("step")
    )


def _free(group: dict[str, Any]) -> bool:
    return (
        group.get("fused", False) is None
        and not group.get("differentiable")
        and not group.get("capturable")
    )


def _choose(optimizer: Any) -> Mapping[str, Any] | str:
    name, groups = type(optimizer).__name__, optimizer.param_groups
    if name not in _FUSABLE or not is_known(optimizer):
        return f"torch has no fused {name}"
    if not all(map(_free, groups)):
        return f"the options of the script's {name} decide on its kernels"
    parameters = [p for group in groups for p in group["params"]]
    if not all(map(_plain, parameters)):
        return f"torch has no fused {name} for sparse gradients or such weights"
    is_on_cpu = all(p.device.type == "cpu" for p in parameters)
    # On a device torch adds Nesterov's momentum to the gradients themselves, which a fused kernel
    # leaves alone; the script may look at them, or keep them.
    has_nesterov = any(group.get("nesterov") for group in groups)
    if not is_on_cpu and (name in _CPU_ALONE or has_nesterov):
        return f"the fused {name} is for the CPU, or without nesterov"
    states = optimizer.state
    if not all(_laid_out_alike(p, states.get(p) or {}) for p in parameters):
        return "weights, gradients and moments differ in their layout in memory"
    return {"fused": True}


def apply(training: Training, setting: bool) -> Callable[[], None]:
    """Fuse every optimizer that has a fused form, from its second step on."""
    return training.on_options(_choose)


LEVER = Lever(
    name="fused_optimizer",
    phases=frozenset({Phase.OPTIMIZER}),
    effect=Effect.ROUNDING,
    scope=Scope.STEP,
    settings=unless(why_not, True),
    gain_ratio=6.0,
    why_not=why_not,
    snippet=lambda _: f"optimizer = {OPTIMIZER}(..., fused=True)",
    apply=apply,
    edit="optimizers.fused_optimizer",
    cures=frozenset({"per-parameter-loops"}),
)
