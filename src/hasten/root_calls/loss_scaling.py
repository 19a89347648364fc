"""Loss scaling in a script that has none: gradients in float16 that do not vanish or overflow.

A gradient below 6e-8 is zero in float16. So a backward pass begins with its gradient times a power
of two, and as soon as it is over, `.grad` of each tensor that it reached is divided by it: float32
loses nothing by that. Gradients from earlier passes are multiplied before, since the new ones are
added to them. What the script does next with a gradient, such as clipping, sees it unscaled.

Where a gradient overflowed nonetheless, the optimizer must not use it, and the scale is halved.
The kernels, and the rule for the scale, are those of `torch.amp.GradScaler`; they do not wait
for the device.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from hasten.modules import weights_of
from hasten.root_calls.calls import leaves_among, nodes_behind
from hasten.root_calls.fit import has_hooks
from hasten.root_calls.own_code import find_word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import CodeType

    from hasten.lever import Training

_SCALINGS: WeakKeyDictionary[Any, LossScaling] = WeakKeyDictionary()
_FIRST, _LEAST = 2.0**15, 2.0**-24  # with torch's own 2^16, a gradient of one overflows
_GROWTH, _BACKOFF, _GROWTH_PASSES_COUNT = 2.0, 0.5, 2000
_SCALED_SEEN_BY = frozenset({
    "register_hook", "register_multi_grad_hook", "register_post_accumulate_grad_hook",
    "register_full_backward_hook", "register_full_backward_pre_hook", "register_backward_hook",
    "retain_grad",
})  # fmt: skip


_GRAD_HOMES = ("autograd", "torch.autograd", "func", "torch.func")


def scaling_for(training: Training) -> LossScaling:
    """Return the loss scaling of a script, which keeps its scale while its lever is off."""
    itself = getattr(training, "itself", training)  # what the child hands to one lever only
    return _SCALINGS.setdefault(itself, LossScaling())


class LossScaling:
    """Scale what backward passes begin with, and unscale what they end with."""

    def __init__(self) -> None:
        self.why_off = ""  # why this script cannot be scaled
        self._excuse: Callable[[Exception], None] = lambda error: None
        self._scale: Any = None
        self._growth: Any = None
        self._flags: dict[int, Any] = {}
        self._roots: dict[int, ref[Any]] = {}
        self._inside = False

    def attach(self, training: Training) -> list[Callable[[], None]]:
        """Act from the first call for which `admits` is asked; return what ends it."""
        import torch

        self._excuse = training.excuse
        return [
            training.on_function(torch.autograd, "backward", self._backward),
            training.on_function(torch.autograd, "grad", self._grad),
            training.on_update(self._overflowed),
        ]

    def admits(self, module: Any) -> bool:
        """Return whether a root call may compute in float16: its gradients will be scaled."""
        import torch

        if not self._roots and not self.why_off and (where := find_word(_sees_scale)):
            self._give_up(f"{where}, which would see scaled gradients")
        if self.why_off or torch.is_anomaly_enabled():  # it raises where a gradient overflows
            return False
        if id(module) not in self._roots:
            self._roots[id(module)] = ref(module)
        return True

    def _give_up(self, why: str) -> None:
        self.why_off = why
        self._excuse(RuntimeError(why))

    # ---- what the script asks torch for

    def _backward(
        self, original: Any, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        roots, given = _listed(tensors, grad_tensors)
        names = ("retain_graph", "create_graph", "grad_variables", "inputs")
        asked = {**dict(zip(names, args, strict=False)), **kwargs}
        reached = None
        if self._scales(roots, given) and not (
            asked.get("create_graph") or asked.get("grad_variables")
        ):
            reached = self._reached(roots, asked.get("inputs"))
        if reached is None:
            return original(tensors, grad_tensors, *args, **kwargs)
        scale = self._scale_on(roots[0].device)
        earlier = _multiply(_gradients(reached), scale)
        self._inside = True
        try:
            return original(roots, _times(scale, roots, given), *args, **kwargs)
        finally:
            self._inside = False
            found = _multiply(_gradients(reached), scale.reciprocal())
            self._settle(found, earlier, reached)

    def _grad(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Answer `torch.autograd.grad`, asked for by a library, whose gradients stay unscaled."""
        if self._roots and not self._inside and not self.why_off:
            self._give_up("a library asks for gradients (autograd.grad), which nothing scales")
        return original(*args, **kwargs)

    def _overflowed(self, optimizer: Any, *, has_closure: bool) -> Any:
        """Return a number that is 1 where a gradient of an optimizer overflowed; None if unknown.

        It is about the passes since the last step of the optimizer, and lies on the device.
        """
        import torch

        if has_closure and self._roots:
            self._give_up("the script hands a closure to its optimizer, which cannot leave it out")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        known = [(p, self._flags.pop(id(p), None)) for p in parameters]
        flags = {id(flag): flag for p, flag in known if p.grad is not None and flag is not None}
        if not flags:
            return None
        first, *others = flags.values()
        for other in others:
            first = torch.maximum(first, other.to(first.device))
        return first

    # ---- the scale

    def _scales(self, roots: Sequence[Any], given: Sequence[Any]) -> bool:
        """Return whether gradients are scaled: not within a scaled pass, nor before it matters."""
        import torch

        if self.why_off or self._inside or not self._roots:
            return False
        return bool(roots) and all(
            isinstance(root, torch.Tensor)
            and root.is_floating_point()
            and (gradient is not None or root.numel() == 1)
            for root, gradient in zip(roots, given, strict=True)
        )

    def _scale_on(self, device: Any) -> Any:
        import torch

        if self._scale is None:
            self._scale = torch.full((), _FIRST, device=device)
            self._growth = torch.zeros((), dtype=torch.int32, device=device)
        return self._scale.to(device, copy=True)

    def _settle(self, found: Any, earlier: Any, reached: Sequence[Any]) -> None:
        """Note what overflowed, and change the scale for the next pass.

        What an earlier pass had left in the gradients is not the fault of the scale.
        """
        import torch

        self._flags.update(zip(map(id, reached), repeat(found)))
        new = (found * (1 - earlier)).to(self._scale.device)
        torch._amp_update_scale_(
            self._scale, self._growth, new, _GROWTH, _BACKOFF, _GROWTH_PASSES_COUNT
        )
        self._scale.clamp_(min=_LEAST)

    def _reached(self, roots: Sequence[Any], inputs: Any) -> list[Any] | None:
        """Return the tensors to whose `.grad` a backward pass adds; None if hooks look at it."""
        import torch

        if inputs is not None:
            found = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        else:
            nodes = nodes_behind(roots)
            found = [root for root in roots if root.is_leaf and root.requires_grad]
            found += leaves_among(nodes)
            if any("BackwardHook" in type(node).__name__ for node in nodes):
                self._give_up("modules have backward hooks, which would see scaled gradients")
                return None
            own = torch.autograd.function.BackwardCFunction
            if any(isinstance(node, own) for node in nodes):
                found = self._and_all_weights(found)  # it may begin a pass of its own
        if not all(isinstance(tensor, torch.Tensor) for tensor in found):
            return None
        if any(map(has_hooks, found)):
            self._give_up("gradients have hooks, which would see them scaled")
            return None
        return found

    def _and_all_weights(self, found: list[Any]) -> list[Any]:
        modules = [module for there in self._roots.values() if (module := there()) is not None]
        weights = chain.from_iterable(weights_of(module) for module in modules)
        return list({id(tensor): tensor for tensor in (*found, *weights)}.values())


def _sees_scale(code: CodeType) -> str:
    """Return the name by which code would see scaled gradients, or would have to scale its own."""
    names = {code.co_name, *code.co_names}
    if "grad" in names and not names.isdisjoint(_GRAD_HOMES):
        return "autograd.grad"
    return min(names & _SCALED_SEEN_BY, default="")


def _listed(tensors: Any, gradients: Any) -> tuple[list[Any], list[Any]]:
    """Return what a pass begins from as two lists of one length, as torch reads it."""
    roots = list(tensors) if isinstance(tensors, (tuple, list)) else [tensors]
    given = list(gradients) if isinstance(gradients, (tuple, list)) else [gradients]
    return roots, given * len(roots) if len(given) == 1 and given[0] is None else given


def _times(scale: Any, roots: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    import torch

    pairs = zip(roots, given, strict=True)
    whole = [torch.ones_like(root) if gradient is None else gradient for root, gradient in pairs]
    return [gradient * scale.to(gradient.device, gradient.dtype) for gradient in whole]


def _gradients(tensors: Iterable[Any]) -> list[Any]:
    import torch

    found = {}
    for tensor in tensors:
        if (gradient := tensor.grad) is not None:
            values = gradient._values() if gradient.is_sparse else gradient.detach()
            found[id(gradient)] = torch.view_as_real(values) if values.is_complex() else values
    return list(found.values())


def _multiply(gradients: Sequence[Any], factor: Any) -> Any:
    """Multiply gradients in place; return a number on the device: 1 where one is not finite."""
    import torch

    groups: dict[Any, list[Any]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    found = torch.zeros((), device=factor.device)
    for (device, _), part in groups.items():
        here = torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(part, here, factor.to(device))
        found = torch.maximum(found, here.to(found.device))
    return found
