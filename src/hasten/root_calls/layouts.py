"""Activations kept channels-last while a root call runs, without anybody noticing.

The rule that makes this sound: a channels-last tensor is always a whole tensor that an
operation from a short list has just made, and has no views. Any other operation, known or
not, finds the tensor as the script expects it: it is laid out again in place, so what is made
from it (a view, an array, a mask) shares its memory as usual. At the end of the call, all that the
script still holds is laid out again.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import ref

from hasten.modules import own_hooks
from hasten.root_calls.fit import hooks_on_saved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_CONVOLUTIONS = {
    "conv2d": 4, "conv_transpose2d": 4, "conv3d": 5, "conv_transpose3d": 5,
}  # fmt: skip
_LAYERS = (
    "batch_norm", "group_norm", "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "elu",
    "elu_", "celu", "selu", "silu", "mish", "gelu", "hardswish", "hardsigmoid", "hardtanh",
    "hardtanh_", "sigmoid", "tanh", "softplus", "max_pool2d", "max_pool3d", "avg_pool2d",
    "avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "interpolate", "pad",
)  # fmt: skip
_OPERATIONS = (
    "relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "add", "add_", "sub", "sub_", "mul",
    "mul_", "div", "div_", "neg", "abs", "square", "sqrt", "rsqrt", "exp", "pow", "clamp",
    "clamp_", "maximum", "minimum", "cat", "concat", "mean", "sum", "__radd__", "__rsub__",
    "__rmul__", "__rdiv__", "__rtruediv__", "__pow__", "__rpow__",
)  # fmt: skip
_BLIND = ("size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "__len__")
_BLIND_PROPERTIES = ("shape", "ndim", "dtype", "device", "requires_grad", "is_cuda", "layout")
_WATCHED = ("register_hook", "retain_grad", "backward")
_DTYPES = ("float32", "bfloat16", "float16")


@lru_cache(maxsize=2)
def _known(
    batch_norm: Any,
) -> tuple[dict[Any, int], frozenset[Any], frozenset[Any], frozenset[Any]]:
    """Return torch's functions, grouped by what they do with memory.

    They are convolutions and their dimensions, the short list, those that look at no memory, and
    those after which gradients are looked at. `batch_norm` may be another's, while that stands in.
    """
    import torch
    from torch.nn import functional

    def found(owner: Any, names: Iterable[str]) -> Iterator[Any]:
        return (getattr(owner, name) for name in names if hasattr(owner, name))

    kind = torch.Tensor
    convolutions = {getattr(functional, name): dims for name, dims in _CONVOLUTIONS.items()}
    layers = (*found(functional, _LAYERS), *found(functional, [f"_{name}" for name in _LAYERS]))
    operations = (*found(torch, _OPERATIONS), *found(kind, _OPERATIONS))
    builtin = (*found(torch, _LAYERS), *found(torch._C._nn, _LAYERS))
    blind = (*found(kind, _BLIND), *(getattr(kind, name).__get__ for name in _BLIND_PROPERTIES))
    watched = (*found(kind, _WATCHED), torch.autograd.grad, torch.autograd.backward)
    fresh = frozenset((batch_norm, *layers, *operations, *builtin))
    return convolutions, fresh, frozenset(blind), frozenset(watched)


def guard_kind() -> Any:
    """Return a context in which `answer(func, types, args, kwargs)` answers for all of torch."""
    from torch.overrides import TorchFunctionMode

    class Guard(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __init__(self, answer: Callable[..., Any]) -> None:
            super().__init__()
            self._answer = answer

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return self._answer(func, types, args, kwargs or {})

    return Guard


def _plain_strides(shape: Any) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _is_plain(tensor: Any) -> bool:
    return bool(tensor.stride() == _plain_strides(tensor.shape))


def _in_order(tensor: Any) -> bool:
    """Return whether results computed from a tensor also have their first dimension outermost.

    Strides of a dimension of one element count: torch takes NHWC images of one channel for
    channels-last ones.
    """
    if _is_plain(tensor):
        return True
    each = zip(tensor.shape, tensor.stride(), strict=True)
    strides = [stride for _, stride in each if stride > 0]
    return strides == sorted(strides, reverse=True)


def _plain(tensor: Any) -> Any:
    """Return a gradient in the layout of a new tensor; used as a hook."""
    import torch

    if tensor.layout != torch.strided or _is_plain(tensor):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _hook(tensor: Any) -> None:
    with own_hooks():
        tensor.register_hook(_plain)


_plain.__torch_unserializable__ = True  # type: ignore[attr-defined]  # else torch.save warns


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def _count(hold: Callable[[], Any]) -> int:
    tensor = hold()
    return sys.getrefcount(tensor)


@lru_cache(maxsize=1)
def _free_count() -> int:
    """Return how many references `_count` finds to a tensor that only autograd holds.

    Torch keeps the Python object of a tensor alive that autograd has saved. Since torch 2.10 its
    count of references tells whether somebody else holds it too; 0 if it does not tell.
    """
    import torch

    with torch.enable_grad():
        one = torch.ones(1, requires_grad=True)
        held = one * 1
        there = ref(held)
        saves = held * one
    before = _count(there)
    del held
    after = _count(there)
    del saves
    return after if after < before else 0


def _hold(tensor: Any) -> Callable[[], Any]:
    import torch

    saved = torch.is_grad_enabled() and not _free_count()
    return (lambda: tensor) if saved else ref(tensor)


@lru_cache(maxsize=1)
def _kept_count() -> int:
    """Return how many references `_count` finds to a tensor that only `_hold` holds."""
    import torch

    def keep(tensor: Any) -> Callable[[], Any]:
        return lambda: tensor

    return _count(keep(torch.ones(1)))


def _is_held(hold: Callable[[], Any]) -> bool:
    tensor = hold()
    if tensor is None:
        return False
    if type(hold) is ref:
        return bool(tensor._use_count() == 1) or _count(hold) > _free_count() + 1  # our name
    return _count(hold) > _kept_count() + 1


def _lay_out(tensor: Any) -> None:
    """Give a tensor the layout of a new one; the object stays, and so does its graph."""
    import torch

    # What is made under inference_mode can never be trained.
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
        _save_again(tensor)


def _save_again(tensor: Any) -> None:
    """Let the backward pass read the script's memory, if it reads a result."""
    saved = getattr(tensor.grad_fn, "_raw_saved_result", None)
    if saved is not None:
        _read_late(saved, tensor)


def _read_late(saved: Any, tensor: Any, layout: Any = None) -> None:
    """Let the backward pass read a tensor of the script's instead of what autograd has saved.

    What the script writes there behind autograd's back would not be seen in a copy.
    """
    version, same, of = tensor._version, tensor.detach(), ""
    if tensor.grad_fn is not None:
        name = tensor.grad_fn.name().replace("Backward0", "").replace("Backward", "")
        of = f", which is output {tensor.output_nr} of {name},"

    def unpack(_: Any) -> Any:
        if same._version != version:  # torch leaves this question to hooks
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{same.type()} {list(same.shape)}]{of} "
                f"is at version {same._version}; expected version {version} instead. "
                "Hint: enable anomaly detection to find the operation that failed to compute its "
                "gradient, with torch.autograd.set_detect_anomaly(True, "
                "check_nan=False)."
            )
        return same if layout is None else same.clone(memory_format=layout)

    saved.register_hooks(lambda _: None, unpack)


class Activations:
    """The activations of one root call that have their channels last."""

    def __init__(self) -> None:
        import torch

        self.refused = ""  # why the module is to be left alone from now on
        self._last: dict[int, Callable[[], Any]] = {}
        self._made: list[Callable[[], Any]] = []
        self._convolutions, self._fresh, self._blind, self._watched = _known(
            torch.nn.functional.batch_norm
        )
        self._own = {torch.Tensor, torch.nn.Parameter}
        self._saving = hooks_on_saved()

    def answer(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Answer for a function of torch."""
        if self.refused or func in self._blind:
            return func(*args, **kwargs)
        if func in self._watched:
            self.refuse("its code looks at gradients inside")
        elif self._saving(True) is not None:
            self.refuse("its code looks at what is saved for the backward pass")
        elif self._own.issuperset(types) and "out" not in kwargs:
            if func in self._convolutions:
                return self._convolve(func, args, kwargs)
            if func in self._fresh:
                return self._compute(func, args, kwargs)
        self.show((args, kwargs))
        return func(*args, **kwargs)

    def show(self, value: Any) -> None:
        """Lay out the tensors in a value whose memory is about to be seen."""
        self._lay_out(_tensors([value]))

    def refuse(self, reason: str) -> None:
        """Go on as the script would, from the middle of a call."""
        self.refused = self.refused or reason  # from here on nothing is changed
        self.settle()

    def settle(self) -> None:
        """Lay out again what the script still holds; its gradients will be plain too."""
        for hold in self._made:
            if _is_held(hold):
                tensor = hold()
                self._lay_out([tensor])
                if tensor.requires_grad and not tensor.is_leaf:
                    _hook(tensor)
        self._made.clear()
        self._last.clear()

    def _is_last(self, tensor: Any) -> bool:
        hold = self._last.get(id(tensor))
        return hold is not None and hold() is tensor

    def _lay_out(self, tensors: Iterable[Any]) -> None:
        if self._last:
            for tensor in tensors:
                if self._is_last(tensor):
                    del self._last[id(tensor)]
                    _lay_out(tensor)

    def _convolve(self, func: Any, args: Any, kwargs: Any) -> Any:
        import torch

        given = args[0] if args else kwargs.get("input")
        last = torch.channels_last if self._convolutions[func] == 4 else torch.channels_last_3d
        if not isinstance(given, torch.Tensor) or self._is_last(given):
            return self._compute(func, args, kwargs)
        taken = given.dim() == self._convolutions[func] and given.layout == torch.strided
        taken = taken and not (given.is_inference() and torch.is_grad_enabled())
        if not taken or str(given.dtype)[6:] not in _DTYPES or not _in_order(given):
            return func(*args, **kwargs)
        laid = given.clone(memory_format=last)
        if laid.requires_grad:
            _hook(laid)
        self._last[id(laid)] = ref(laid)
        if args:
            made = self._compute(func, (laid, *args[1:]), kwargs)
        else:
            made = self._compute(func, args, {**kwargs, "input": laid})
        saved = getattr(made.grad_fn, "_saved_input", None)
        if saved is not None and (saved.shape, saved.dtype) == (given.shape, given.dtype):
            _read_late(made.grad_fn._raw_saved_input, given, last)  # else torch keeps a copy too
        return made

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Answer for a function that makes a new tensor, or writes into its first argument."""
        given = list(_tensors((args, kwargs)))
        others = [one for one in given if not self._is_last(one)]
        if len(others) == len(given):
            return func(*args, **kwargs)
        into = func.__name__.endswith("_") and others and others[0] is given[0]
        if into or not all(map(_in_order, others)):
            self._lay_out(given)
            return func(*args, **kwargs)
        made = func(*self._enter(args), **self._enter(kwargs))
        for tensor in _tensors((made,)):
            if not _is_plain(tensor) and not self._is_last(tensor):
                self._made.append(_hold(tensor))
                self._last[id(tensor)] = self._made[-1]
        return made

    def _enter(self, value: Any) -> Any:
        """Return replacements for the script's tensors, so that their gradients come out plain."""
        import torch

        if isinstance(value, torch.Tensor):
            learns = value.requires_grad and value.dim() > 1 and torch.is_grad_enabled()
            if not learns or self._is_last(value):
                return value
            entered = value.view_as(value)
            _hook(entered)
            return entered
        if type(value) in (list, tuple):
            return type(value)(map(self._enter, value))
        if type(value) is dict:
            return {name: self._enter(part) for name, part in value.items()}
        return value
