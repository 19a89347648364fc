"""fused_optimizer: one kernel for the whole update instead of several per parameter.

Helps: models with many parameters, where the update is a loop over tensors in Python.
Hurts: little; torch leaves it off by default because the kernels are younger.
Maths: rounding. The kernel keeps intermediate values that the loop rounds.
Source: https://github.com/pytorch/pytorch/pull/123074
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from upshift.lever import Lever
from upshift.records import Effect, Phase, Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from upshift.lever import Scene, Training

_FUSABLE = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})


def settings(scene: Scene) -> tuple[bool, ...]:
    """Return the one setting there is, for an optimizer that has a fused form."""
    fusable = scene.traits.get("optimizer.name") in _FUSABLE
    return (True,) if fusable and not scene.traits.get("optimizer.fused") else ()


def why_not(scene: Scene) -> str:
    """Say why there is nothing to try."""
    name = scene.traits.get("optimizer.name")
    if name is None:
        return "the script updates its weights by hand"
    return f"{name} is fused already" if name in _FUSABLE else f"torch has no fused {name}"


def _known(optimizer: Any) -> bool:
    """Return whether this is torch's own class; one of the script's may have the same name."""
    import torch

    name = type(optimizer).__name__
    return name in _FUSABLE and type(optimizer) is getattr(torch.optim, name)


def _fits(optimizer: Any) -> bool:
    """Return whether the fused kernel takes these parameters: dense, real, on one device."""
    import torch

    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    sparse = any(p.grad is not None and p.grad.layout != torch.strided for p in parameters)
    return (
        all("fused" in group and not group["fused"] for group in optimizer.param_groups)
        and not any(group.get("differentiable") for group in optimizer.param_groups)
        and all(torch.is_floating_point(p) for p in parameters)
        and not sparse
    )


def _fuse(optimizer: Any) -> None:
    import torch

    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
    for state in optimizer.state.values():
        step = state.get("step")
        if isinstance(step, torch.Tensor) and step.dtype != torch.float32:
            state["step"] = step.to(torch.float32)


def _flags(optimizer: Any) -> list[tuple[Any, Any]]:
    return [(group["fused"], group.get("foreach")) for group in optimizer.param_groups]


def _put_back(groups: list[dict[str, Any]], flags: list[tuple[Any, Any]]) -> None:
    for group, (fused, foreach) in zip(groups, flags, strict=False):
        group["fused"], group["foreach"] = fused, foreach


def _pull_one(optimizer: Any) -> Callable[[], None] | None:
    """Fuse one optimizer; what it saves to a checkpoint still says what the script said."""
    if not (_known(optimizer) and _fits(optimizer)):
        return None
    own = _flags(optimizer)

    def saved(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        _put_back(state["param_groups"], own)
        return state

    def loaded(_: Any) -> None:  # the flags of the checkpoint are now the script's own
        own[:] = _flags(optimizer)
        _fuse(optimizer)

    hooks = [
        optimizer.register_state_dict_post_hook(saved),
        optimizer.register_load_state_dict_post_hook(loaded),
    ]
    _fuse(optimizer)

    def undo() -> None:
        for hook in hooks:
            hook.remove()
        _put_back(optimizer.param_groups, own)

    return undo


def pull(training: Training, setting: bool) -> Callable[[], None]:
    """Fuse every optimizer right before its first step."""
    return training.on_optimizer(_pull_one)


LEVER = Lever(
    name="fused_optimizer",
    phases=frozenset({Phase.OPTIMIZER}),
    effect=Effect.ROUNDING,
    switch=Switch.STEP,
    settings=settings,
    gain_ratio=6.0,
    why_not=why_not,
    lines=lambda _: "optimizer = torch.optim.AdamW(..., fused=True)  # the script's own class",
    pull=pull,
)
