"""channels_last: keep the weights and activations of convolutions as NHWC, in 3-D as NDHWC.

Helps: convolutional networks, on CPUs with oneDNN and on tensor cores.
Hurts: models with few convolutions, where each change of layout is a copy. So is a `.view` of
    activations that torch has no view for in this layout.
Maths: rounding. Another convolution kernel sums in another order. Dropout, which torch draws in the
    order of memory, is drawn in the order of the script's own layout, so the masks stay.
Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from upshift.lever import Lever
from upshift.records import Effect, Phase, Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from upshift.lever import Scene, Training


def settings(scene: Scene) -> tuple[bool, ...]:
    """Return the one setting there is, for models with 2-D or 3-D convolutions."""
    found = scene.traits.get("model.conv") or scene.traits.get("model.conv3d")
    done = scene.traits.get("model.channels_last")
    return (True,) if found and not done and scene.traits.get("optimizer.name") != "LBFGS" else ()


def why_not(scene: Scene) -> str:
    """Say why there is nothing to try."""
    if scene.traits.get("optimizer.name") == "LBFGS":
        return "LBFGS reads gradients as flat vectors, which torch refuses in this layout"
    if scene.traits.get("model.channels_last"):
        return "the script gives its convolutions this layout already"
    return "the model has no 2-D or 3-D convolution"


def _layout(tensor: Any) -> Any:
    """Return the layout with channels last for tensors of so many dimensions, None for others."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.dim() not in (4, 5):
        return None
    if tensor.layout != torch.strided or not tensor.is_floating_point():
        return None
    return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d


def _convolutions(module: Any) -> list[Any]:
    from torch import nn

    kinds = (nn.Conv2d, nn.ConvTranspose2d, nn.Conv3d, nn.ConvTranspose3d)
    return [part for part in module.modules() if isinstance(part, kinds)]


def _alone(tensor: Any) -> bool:
    """Return whether nobody else holds these numbers: who does would be left with old ones.

    Views of a flat buffer, weights in shared memory, a `state_dict` that the script keeps.
    """
    import torch

    storage = tensor.untyped_storage()
    if tensor.is_shared() or storage.nbytes() != tensor.nbytes:
        return False
    count: Any = getattr(torch._C, "_storage_Use_Count", None)
    if count is None:
        return True
    fresh = torch.empty(1).untyped_storage()
    return bool(count(storage._cdata) <= count(fresh._cdata) + 1)


def _lay_out(tensor: Any, layout: Any) -> None:
    tensor.data = tensor.data.contiguous(memory_format=layout)


def _convert_module(module: Any) -> Callable[[], None] | None:
    """Convert the weights of convolutions in place; the same Parameter objects stay."""
    import torch

    changed = []
    for weight in {id(p): p for part in _convolutions(module) for p in part.parameters()}.values():
        layout = _layout(weight)
        if layout is None or not weight.is_contiguous() or not _alone(weight):
            continue
        _lay_out(weight, layout)
        changed.append(weight)
        if weight.grad is not None and _alone(weight.grad):
            _lay_out(weight.grad, layout)

    def undo() -> None:
        for weight in changed:
            for tensor in (weight, weight.grad):
                if tensor is not None and _alone(tensor):
                    _lay_out(tensor, torch.contiguous_format)

    return undo if changed else None


def _follow_weights(optimizer: Any) -> None:
    """Lay the state (momentum, moments) out as its weights are.

    Fused kernels walk over weights, gradients and moments side by side in memory.
    """
    import torch

    for weight, state in optimizer.state.items():
        last = _layout(weight)
        if last is None:
            continue
        for layout in (torch.contiguous_format, last):
            if weight.is_contiguous(memory_format=layout):
                break
        else:  # some other layout, of the script's own
            continue
        for value in state.values():
            if _layout(value) is not None and value.shape == weight.shape:
                _lay_out(value, layout)


class _Layouts:
    """The roots and optimizers of one training, which change layout together."""

    def __init__(self) -> None:
        self._optimizers: WeakKeyDictionary[Any, None] = WeakKeyDictionary()

    def convert_root(self, module: Any) -> Callable[[], None] | None:
        """Convert a root module, and the state that optimizers have of its weights already."""
        undo = _convert_module(module)
        self.follow()
        return undo

    def convert_optimizer(self, optimizer: Any) -> Callable[[], None]:
        """Let an optimizer's state follow its weights, now and after a checkpoint was loaded."""
        self._optimizers[optimizer] = None
        _follow_weights(optimizer)
        hook = optimizer.register_load_state_dict_post_hook(_follow_weights)
        remove: Callable[[], None] = hook.remove
        return remove

    def follow(self) -> None:
        """Lay the state of every optimizer out as its weights are now."""
        for optimizer in list(self._optimizers):
            _follow_weights(optimizer)

    def convert_inputs(self, module: Any) -> Callable[[Any], Any] | None:
        """Return how inputs with as many dimensions as the module's convolutions take become."""
        taken = frozenset(len(part.kernel_size) + 2 for part in _convolutions(module))

        def convert(tensor: Any) -> Any:
            layout = _layout(tensor) if tensor.dim() in taken else None
            return tensor if layout is None else tensor.contiguous(memory_format=layout)

        return convert if taken else None


def _drop(
    original: Any,
    input: Any,  # noqa: A002  # the name that torch gives it
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    """Answer `torch.nn.functional.dropout` with the mask that it draws without this lever.

    torch fills a mask in the order of memory: with channels last, other activations would be
    dropped by the same numbers.
    """
    import torch

    layout = _layout(input)
    if (
        not training
        or not p
        or layout is None
        or type(input) is not torch.Tensor
        or input.is_contiguous()
        or not input.is_contiguous(memory_format=layout)
    ):
        return original(input, p, training, inplace)
    ones = torch.ones(input.shape, dtype=input.dtype, device=input.device)
    mask = original(ones, p, True, True).contiguous(memory_format=layout)
    return input.mul_(mask) if inplace else input * mask


def _view(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Answer `Tensor.view` where this layout has no such view: of a copy in the script's own."""
    try:
        return original(tensor, *args, **kwargs)
    except RuntimeError:
        layout = _layout(tensor)
        if layout is None or not tensor.is_contiguous(memory_format=layout):
            raise
        return original(tensor.contiguous(), *args, **kwargs)


def pull(training: Training, setting: bool) -> Callable[[], None]:
    """Convert root modules, optimizer state, and the inputs of root calls."""
    import torch
    from torch.nn import functional

    layouts = _Layouts()
    undos = [
        training.on_function(functional, "dropout", _drop),
        training.on_function(torch.Tensor, "view", _view),
        training.on_root(layouts.convert_root),
        training.on_optimizer(layouts.convert_optimizer),
        training.on_inputs(layouts.convert_inputs),
    ]

    def undo() -> None:
        for put_back in undos:
            put_back()
        layouts.follow()

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
        "# 3-D convolutions: torch.channels_last_3d\n"
        "model = model.to(memory_format=torch.channels_last)\n"
        "images = images.to(memory_format=torch.channels_last)\n"
        "# where the model calls .view on feature maps: .reshape"
    ),
    settle_count=1,
    pull=pull,
)
