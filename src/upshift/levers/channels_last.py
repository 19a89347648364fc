"""channels_last: keep the weights and activations of 2-D convolutions as NHWC.

Helps: convolutional networks, on CPUs with oneDNN and on tensor cores.
Hurts: models with few convolutions, where each change of layout is a copy; one-channel inputs.
Maths: rounding. Another convolution kernel sums in another order.
Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from upshift.lever import Lever
from upshift.records import Effect, Phase, Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from upshift.lever import Scene, Training

_IMAGE_DIMENSIONS = 4


def settings(scene: Scene) -> tuple[bool, ...]:
    """Return the one setting there is, for models with 2-D convolutions."""
    return (True,) if scene.traits.get("model.conv") else ()


def why_not(scene: Scene) -> str:
    """Say why there is nothing to try."""
    return "the model has no 2-D convolution"


def _image_like(tensor: Any) -> bool:
    import torch

    return (
        isinstance(tensor, torch.Tensor)
        and tensor.dim() == _IMAGE_DIMENSIONS
        and tensor.is_floating_point()
    )


def _as_layout(tensor: Any, layout: Any) -> Any:
    return tensor.contiguous(memory_format=layout)


def _convert_module(module: Any) -> Callable[[], None] | None:
    """Convert the 4-D parameters and buffers in place; the same Parameter objects stay."""
    import torch

    changed = []
    for tensor in (*module.parameters(), *module.buffers()):
        if _image_like(tensor) and tensor.is_contiguous():
            tensor.data = _as_layout(tensor.data, torch.channels_last)
            if tensor.grad is not None:
                tensor.grad.data = _as_layout(tensor.grad.data, torch.channels_last)
            changed.append(tensor)

    def undo() -> None:
        for tensor in changed:
            tensor.data = _as_layout(tensor.data, torch.contiguous_format)
            if tensor.grad is not None:
                tensor.grad.data = _as_layout(tensor.grad.data, torch.contiguous_format)

    return undo if changed else None


def _convert_state(optimizer: Any) -> Callable[[], None]:
    """Lay the 4-D state (momentum, moments) out as its weights are, now and at the undo."""
    import torch

    def follow_weights() -> None:
        for weight, state in optimizer.state.items():
            if not _image_like(weight):
                continue
            for layout in (torch.contiguous_format, torch.channels_last):
                if weight.is_contiguous(memory_format=layout):
                    break
            else:  # some other layout, of the script's own
                continue
            for value in state.values():
                if _image_like(value) and value.shape == weight.shape:
                    value.data = _as_layout(value.data, layout)

    follow_weights()
    return follow_weights


def _convert_input(module: Any, tensor: Any) -> Any:
    import torch

    return _as_layout(tensor, torch.channels_last) if _image_like(tensor) else tensor


def pull(training: Training, setting: bool) -> Callable[[], None]:
    """Convert root modules, optimizer state, and the inputs of root calls."""
    undos = [
        training.on_root(_convert_module),
        training.on_optimizer(_convert_state),
        training.on_inputs(_convert_input),
    ]

    def undo() -> None:
        for put_back in undos:
            put_back()

    return undo


LEVER = Lever(
    name="channels_last",
    phases=frozenset({Phase.FORWARD, Phase.BACKWARD}),
    effect=Effect.ROUNDING,
    switch=Switch.STEP,
    settings=settings,
    gain_ratio=2.0,
    why_not=why_not,
    lines=lambda _: (
        "model = model.to(memory_format=torch.channels_last)\n"
        "images = images.to(memory_format=torch.channels_last)"
    ),
    settle_count=1,
    pull=pull,
)
