"""channels_last: keep the weights and activations of convolutions as NHWC, in 3-D as NDHWC.

Helps: convolutional networks, on CPUs with oneDNN and on tensor cores.
Hurts: models with few convolutions, where each change of layout is a copy. So is a `.view` that
    torch does not have in this layout: of activations at each call, while a weight whose memory
    the script views gets its own layout back for good.
Maths: rounding. Another convolution kernel sums in another order. Masks and noise, which torch
    draws in the order of memory, are drawn in the order of the script's own layout, so they stay:
    in `dropout`, `normal_` and its like, `randn_like` and its like. Files of `torch.save`, pickle
    and safetensors have the script's layout, too. A module that goes to TorchScript, ONNX or
    `torch.export` gets its layout back for good; a trace alone keeps this one.
Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
"""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from upshift.compile.exports import before_exports
from upshift.compile.memory import (
    holder_count,
    is_alone,
    is_last,
    is_lent,
    is_mapped,
    is_whole,
    laid_by_place,
    lay_out,
    layout_of,
)
from upshift.lever import Lever, undo_all
from upshift.records import Effect, Phase, Switch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from upshift.lever import Scene, Training

_DRAWN_INTO = (
    "normal_", "uniform_", "bernoulli_", "exponential_", "cauchy_", "geometric_", "log_normal_",
    "random_",
)  # fmt: skip
_DRAWN_LIKE = ("randn_like", "rand_like", "randint_like")
_SAFETENSORS = ("_flatten", "_flatten_as_ptr")  # of old and of new releases


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


def _convolutions(module: Any) -> list[Any]:
    from torch import nn

    kinds = (nn.Conv2d, nn.ConvTranspose2d, nn.Conv3d, nn.ConvTranspose3d)
    return [part for part in module.modules() if isinstance(part, kinds)]


def _convert_module(module: Any, spared: set[int]) -> list[Any]:
    """Convert the weights of convolutions in place, and return them; they stay the same objects.

    Args:
        module: whose convolutions.
        spared: ids of weights to leave alone.
    """
    changed = []
    for weight in {id(p): p for part in _convolutions(module) for p in part.parameters()}.values():
        layout = layout_of(weight)
        movable = layout is not None and weight.is_contiguous() and is_alone(weight)
        if id(weight) in spared or not movable:
            continue
        lay_out(weight, layout)
        changed.append(weight)
        if weight.grad is not None and is_alone(weight.grad):
            lay_out(weight.grad, layout)
    return changed


def _follow_weight(weight: Any, state: Mapping[str, Any]) -> None:
    """Lay the gradient and the state (momentum, moments) of a weight out as it is itself.

    Fused kernels walk over weights, gradients and moments side by side in memory.
    """
    import torch

    gradient, strides = weight.grad, weight.stride()  # asked before each step: the quick way first
    beside = [v for v in (gradient, *state.values()) if type(v) is torch.Tensor and v.dim() > 3]
    for value in [v for v in beside if v.layout is torch.strided and v.stride() != strides]:
        layouts = (torch.contiguous_format, layout_of(weight))  # others are the script's own
        fitting = [one for one in layouts if weight.is_contiguous(memory_format=one)]
        if fitting and value.shape == weight.shape and (value is not gradient or is_alone(value)):
            lay_out(value, fitting[0])


def _follow_weights(optimizer: Any) -> None:
    for weight, state in optimizer.state.items():
        if layout_of(weight) is not None:
            _follow_weight(weight, state)


class _Layouts:
    """The roots and optimizers of one training, which change layout together."""

    def __init__(self) -> None:
        self._optimizers: WeakKeyDictionary[Any, None] = WeakKeyDictionary()
        self._weights: list[ref[Any]] = []  # a set would compare tensors number by number
        self._exported: list[ref[Any]] = []

    def convert_root(self, module: Any) -> None:
        """Convert a root module, and the state that optimizers have of its weights already."""
        spared = {id(held()) for held in self._exported}
        self._weights += map(ref, _convert_module(module, spared))
        self.follow()

    def _put_back(self, weights: list[Any]) -> None:
        """Give weights their own layout back, and all who share their memory with them."""
        import torch

        held: dict[int, list[Any]] = {}
        for tensor in (one for weight in weights for one in (weight, weight.grad)):
            if not is_last(tensor):
                continue
            others = [] if is_alone(tensor) else self._others(tensor, held)
            if others is not None:
                lay_out(tensor, torch.contiguous_format, *others)

    def release(self) -> bool:
        """Give everything its own layout back; return whether nothing is left in this one."""
        self._put_back(self._living())
        self.follow()
        return not any(map(is_last, self._living()))

    def leave(self, module: Any) -> None:
        """Give a module that is exported its own layout back, for good."""
        import torch

        if isinstance(module, torch.nn.Module):
            inside = list(module.parameters())
            self._exported += map(ref, inside)
            own = set(map(id, inside))
            self._put_back([weight for weight in self._living() if id(weight) in own])
            self.follow()

    def copy(self, original: Any, weight: Any, *args: Any) -> Any:
        """Answer `copy.deepcopy` of a weight, whose copy has this layout, too."""
        copied = original(weight, *args)
        if is_last(copied) and is_last(weight):
            place = weight.data_ptr()
            if any(one.data_ptr() == place for one in self._living()):
                self._weights.append(ref(copied))
        return copied

    def convert_optimizer(self, optimizer: Any) -> Callable[[], None]:
        """Let an optimizer's state follow its weights, now and whenever the script changes one."""
        self._optimizers[optimizer] = None
        _follow_weights(optimizer)
        hooks = [
            optimizer.register_step_pre_hook(self._mend),
            optimizer.register_load_state_dict_post_hook(_follow_weights),
        ]
        return undo_all([hook.remove for hook in hooks])

    def _living(self) -> list[Any]:
        return [weight for weight in (held() for held in self._weights) if weight is not None]

    def follow(self) -> None:
        """Lay the state of every optimizer out as its weights are now."""
        for optimizer in list(self._optimizers):
            _follow_weights(optimizer)

    def _mend(self, optimizer: Any, *_: Any) -> None:
        for weight in self._living():
            if state := optimizer.state.get(weight):
                _follow_weight(weight, state)

    def convert_inputs(self, module: Any) -> Callable[[Any], Any] | None:
        """Return how inputs with as many dimensions as the module's convolutions take become."""
        taken = frozenset(len(part.kernel_size) + 2 for part in _convolutions(module))

        def convert(tensor: Any) -> Any:
            layout = layout_of(tensor) if tensor.dim() in taken else None
            return tensor if layout is None else tensor.contiguous(memory_format=layout)

        return convert if taken else None

    def view(self, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Answer `Tensor.view` where this layout has no such view.

        The script may write through a view, so the tensor gets its own layout back; where nobody
        can write, or who shares the memory is not known, the view is of a copy.
        """
        import torch

        internals: Any = torch._C
        if internals._get_tracing_state() and is_last(tensor):
            return original(tensor.contiguous(), *args, **kwargs)  # a trace breaks at a refusal
        try:
            return original(tensor, *args, **kwargs)
        except RuntimeError:
            layout = layout_of(tensor)
            laid = layout is not None and tensor.is_contiguous(memory_format=layout)
            if not laid and not is_mapped(tensor):
                raise
        is_read = tensor.is_leaf and tensor.requires_grad and torch.is_grad_enabled()
        if is_last(tensor) and not is_read:
            others = [] if is_alone(tensor) else self._others(tensor, {})
            if others is not None:
                lay_out(tensor, torch.contiguous_format, *others)
                return original(tensor, *args, **kwargs)
        return original(tensor.contiguous(), *args, **kwargs)

    def _others(self, tensor: Any, held: dict[int, list[Any]]) -> list[Any] | None:
        """Return who else has the memory of a weight, gradient or moment; None where unknown.

        Args:
            tensor: that shares its memory.
            held: all tensors of this layout by their place, found where they are needed.
        """
        if not is_whole(tensor) or is_lent(tensor):
            return None
        place, strides, count = tensor.data_ptr(), tensor.stride(), holder_count(tensor)
        found = [one for one in self._laid() if one.data_ptr() == place][:1]
        if found and (count != 2 or found[0] is tensor):  # as where the script keeps a state_dict
            found = [one for one in laid_by_place(held).get(place, ()) if one is not tensor]
        alike = all(one.stride() == strides and one.dtype == tensor.dtype for one in found)
        return found if found and alike and count in (None, len(found) + 1) else None

    def _laid(self) -> Iterator[Any]:
        """Yield the weights that were converted, their gradients and moments."""
        for weight in self._living():
            states = (optimizer.state.get(weight) or {} for optimizer in self._optimizers)
            moments = (value for state in states for value in state.values())
            yield from filter(is_last, (weight, weight.grad, *moments))


def _drop(original: Any, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002  # as torch
    """Answer `dropout` and `alpha_dropout` with the mask that they draw without this lever.

    torch fills a mask in the order of memory: with channels last, other activations would be
    dropped by the same numbers.
    """
    told = {**dict(zip(("p", "training", "inplace"), args, strict=False)), **kwargs}
    if not told.get("training", True) or not told.get("p", 0.5) or not is_last(input):
        return original(input, *args, **kwargs)
    inplace = told.pop("inplace", False)
    dropped = original(input.contiguous(), **told)
    return input.copy_(dropped) if inplace else dropped.contiguous(memory_format=layout_of(input))


def _draw_into(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Answer `Tensor.normal_` and its like, as `_drop` does."""
    import torch

    if not is_last(tensor):
        return original(tensor, *args, **kwargs)
    drawn = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.copy_(original(drawn, *args, **kwargs))


def _draw_like(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Answer `torch.randn_like` and its like."""
    import torch

    asked = kwargs.get("memory_format") or torch.preserve_format
    if not is_last(tensor) or asked is not torch.preserve_format:
        return original(tensor, *args, **kwargs)
    drawn = original(tensor, *args, **{**kwargs, "memory_format": torch.contiguous_format})
    return drawn if drawn.requires_grad else drawn.contiguous(memory_format=layout_of(tensor))


class _Copies:
    """Tensors in the script's layout, for files: one copy for all that share a memory.

    It lives as long as somebody else holds it, as what writes a file does.
    """

    def __init__(self) -> None:
        self._storages: WeakValueDictionary[Any, Any] = WeakValueDictionary()

    def of(self, tensor: Any) -> Any:
        """Return a copy of a tensor, without its graph."""
        key = tensor.data_ptr(), tensor.dtype, tensor.shape
        if (storage := self._storages.get(key)) is not None:
            known = tensor.new_empty(0).set_(storage, 0, tensor.shape)
            if known.equal(tensor):  # else it is one of before
                return known
        fresh = tensor.detach().contiguous()
        self._storages[key] = fresh.untyped_storage()
        return fresh

    def reduce(self, original: Any, tensor: Any, *args: Any) -> Any:
        """Answer what pickle and `torch.save` ask a tensor for.

        `copy.copy` asks the same, and shares the memory with what it makes of it.
        """
        import torch

        made, parts = original(tensor, *args)
        dense = made is torch._utils._rebuild_tensor_v2 and is_last(tensor)
        asker = sys._getframe(3).f_code  # behind the stand-in and __reduce_ex__
        if dense and is_whole(tensor) and asker is not copy.copy.__code__:
            laid = self.of(tensor)
            parts = (laid._typed_storage(), 0, parts[2], laid.stride(), *parts[4:])
        return made, parts

    def flatten(self, original: Any, tensors: Any, *args: Any) -> Any:
        """Answer what safetensors makes of tensors to write them; it refuses this layout."""
        if isinstance(tensors, dict):
            tensors = {k: self.of(t) if is_last(t) else t for k, t in tensors.items()}
        return original(tensors, *args)


def pull(training: Training, setting: bool) -> Callable[[], None]:
    """Convert root modules, optimizer state, and the inputs of root calls."""
    import torch
    from torch.nn import functional

    layouts, copies = _Layouts(), _Copies()
    views: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch.Tensor, name, layouts.view) for name in ("view", "view_as")
    ]
    answers: list[tuple[Any, str, Callable[..., Any]]] = [
        *((functional, name, _drop) for name in ("dropout", "alpha_dropout")),
        *((torch.Tensor, name, _draw_into) for name in _DRAWN_INTO),
        *((torch, name, _draw_like) for name in _DRAWN_LIKE),
        *((kind, "__deepcopy__", layouts.copy) for kind in (torch.Tensor, torch.nn.Parameter)),
        ("torch", "Tensor._reduce_ex_internal", copies.reduce),
        *(("safetensors.torch", name, copies.flatten) for name in _SAFETENSORS),
    ]
    stop_views = undo_all([training.on_function(*view) for view in views])
    undos = [training.on_function(*answer) for answer in answers]
    undos += before_exports(training, layouts.leave)
    undos += [
        training.on_root(layouts.convert_root),
        training.on_optimizer(layouts.convert_optimizer),
        training.on_inputs(layouts.convert_inputs),
    ]

    def undo() -> None:
        undo_all(undos)()
        if layouts.release():  # else the script would meet refusals that it does not know
            stop_views()

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
