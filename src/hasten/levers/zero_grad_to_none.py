"""zero_grad_to_none: let gradients go instead of filling them with zeros.

Helps: scripts that call `zero_grad(set_to_none=False)` on large models: the pass that writes the
    zeros goes, and the one that adds the new gradient to them is shorter: 1.1 times in the backward
    pass of 60 gradients of 200,000 elements. Gradients below 256 KiB stay as they are.
Hurts: little. Gradients that the script zeroes in a loop of its own (`p.grad.zero_()`) cannot be
    seen: they stay as they are, and nothing is gained.
Maths: exact. A gradient that is read and did not come is zeros again: weight decay and momentum
    act as in the script. Minus zero becomes zero, as in 0 + g. Gradients that the script holds
    on to, or that lie in a buffer of its own, are left alone; all of them are in a script that
    asks for addresses or versions of tensors, or counts operations.
Source: https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from weakref import getweakrefcount, ref

from hasten.compile.own_code import mention
from hasten.lever import Lever
from hasten.records import Effect, Phase, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hasten.lever import ScriptContext, Training

_TELLING = (
    "data_ptr", "_version", "_cdata", "__array_interface__", "TorchDispatchMode",
    "__torch_dispatch__", "profile", "profiler",
)  # fmt: skip
"""Names in a script that could tell a gradient that stayed from one that is made anew."""
_SMALLEST_BYTES = 1 << 18  # below, the looks at a gradient cost more than the passes


def settings(context: ScriptContext) -> tuple[bool, ...]:
    """Return the one setting there is, where gradients lay as zeros before a backward pass."""
    return (True,) if context.traits.get("optimizer.zero_filled") else ()


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try."""
    if context.traits.get("optimizer.zero_filled") is None:
        return "no optimizer of torch was seen before a second backward pass"
    return "no gradient is filled with zeros before the backward pass"


def promising(context: ScriptContext) -> bool:
    """Return whether gradients are large on average; small ones stay as they are."""
    tensor_count = int(context.traits.get("optimizer.parameter_count", 0))
    element_count = int(context.traits.get("model.parameter_count", 0))
    return element_count * 4 >= max(1, tensor_count) * _SMALLEST_BYTES


def _reference_counts(gradient: Any) -> tuple[int, int, int]:
    """Return who refers to a gradient: from Python, from C++, and to its memory."""
    import torch

    counter: Any = torch._C
    memory = gradient.untyped_storage()._cdata
    return sys.getrefcount(gradient), gradient._use_count(), counter._storage_Use_Count(memory)


class Zeros:
    """Gradients that were zeroed and are away until somebody reads one of them.

    The attribute `grad` of `torch.nn.Parameter` is ours meanwhile. A read settles all of them:
    where no gradient came, zeros are put.

    Args:
        training: told why the gradients of a script stay.
    """

    def __init__(self, training: Training) -> None:
        import torch

        self._training = training
        self._has_looked = self._stays = False
        self._away: dict[int, Any] = {}
        self._is_blind = False
        self._kind: Any = torch.nn.Parameter
        self._grad: Any = torch.Tensor.grad
        scratch = torch.nn.Parameter(torch.zeros(1))
        scratch.grad = torch.zeros(1)
        self._alone = self._counts(scratch)
        ours: Any = property(self._read, self._write, self._delete)
        self._kind.grad = ours

    def release(self) -> None:
        """Give the attribute back, and the gradients that are away."""
        self._settle()
        del self._kind.grad

    def zero(self, parameters: Iterable[Any], fill: Callable[[], Any], *, to_none: bool) -> Any:
        """Let the gradients go that can go; `fill` does the others the script's way."""
        if not self._has_looked:
            self._look()
        for parameter in parameters:
            if to_none:
                self._away.pop(id(parameter), None)
            elif not self._stays and self._can_go(parameter):
                self._grad.__set__(parameter, None)
                self._away[id(parameter)] = parameter
        self._is_blind = True
        try:
            return fill()
        finally:
            self._is_blind = False

    def _look(self) -> None:
        """Read once whether the script could tell that gradients go."""
        self._has_looked = True
        if where := mention(_TELLING, functions=("id",)):
            self._stays = True
            self._training.excuse(RuntimeError(f"gradients stay where they are: {where}"))

    def _counts(self, parameter: Any) -> tuple[int, int, int]:
        return _reference_counts(self._grad.__get__(parameter))

    def _can_go(self, parameter: Any) -> bool:
        """Return whether nobody could tell a gradient of zeros from one that is made later."""
        import torch

        gradient = self._grad.__get__(parameter)
        if (
            type(parameter) is not self._kind
            or type(gradient) is not torch.Tensor
            or gradient.layout is not torch.strided
            or not gradient.is_cpu
        ):
            return False
        size_bytes = gradient.nbytes
        is_its_own = (
            size_bytes >= _SMALLEST_BYTES
            and not gradient.requires_grad
            and not gradient._is_view()
            and gradient.dtype == parameter.dtype
            and gradient.stride() == parameter.stride()
            and gradient.untyped_storage().nbytes() == size_bytes
            and not getweakrefcount(gradient)
            and not vars(gradient)
        )
        del gradient
        if not is_its_own:
            return False
        counts = zip(self._counts(parameter), self._alone, strict=True)
        return all(count <= alone for count, alone in counts)

    def _read(self, parameter: Any) -> Any:
        if self._away and not self._is_blind and id(parameter) in self._away:
            self._settle()
        return self._grad.__get__(parameter)

    def _write(self, parameter: Any, gradient: Any) -> None:
        self._away.pop(id(parameter), None)
        self._grad.__set__(parameter, gradient)

    def _delete(self, parameter: Any) -> None:
        self._away.pop(id(parameter), None)
        self._grad.__delete__(parameter)

    def _settle(self) -> None:
        """Make every gradient that is away what it would be in the script: zeros + what came."""
        import torch

        away = list(self._away.values())
        self._away.clear()
        came = []
        with torch.inference_mode(False), torch.no_grad():
            for parameter in away:
                gradient = self._grad.__get__(parameter)
                if gradient is None:
                    self._grad.__set__(parameter, torch.zeros_like(parameter))
                elif gradient.requires_grad:  # of a backward pass with create_graph
                    with torch.enable_grad():
                        self._grad.__set__(parameter, torch.zeros_like(gradient) + gradient)
                elif gradient.layout is not torch.strided:
                    self._grad.__set__(parameter, torch.zeros_like(parameter).add_(gradient))
                else:
                    came.append(gradient)
            if came:
                torch._foreach_add_(came, 0.0)


def _zeroing(optimizer: Any, zeros: Zeros) -> Callable[[], None] | None:
    """Let `zero_grad` of one optimizer go by `zeros`; a method of the script's own stays.

    The optimizer is not kept alive: neither by its own attribute nor by the undo.
    """
    import torch

    kind, held = type(optimizer), ref(optimizer)
    if "zero_grad" in vars(optimizer) or kind.zero_grad is not torch.optim.Optimizer.zero_grad:
        return None

    def zero_grad(set_to_none: bool = True) -> Any:
        optimizer = held()
        if optimizer is None:
            return None
        parameters = [p for group in optimizer.param_groups for p in group["params"]]

        def fill() -> Any:
            return kind.zero_grad(optimizer, set_to_none=set_to_none)

        return zeros.zero(parameters, fill, to_none=set_to_none)

    def undo() -> None:
        optimizer = held()
        if optimizer is not None:
            vars(optimizer).pop("zero_grad", None)

    optimizer.zero_grad = zero_grad
    return undo


def apply(training: Training, setting: bool) -> Callable[[], None]:
    """Let the gradients go in `zero_grad(set_to_none=False)` of optimizers and modules."""
    import torch

    if "grad" in vars(torch.nn.Parameter):  # another tool has its own
        return lambda: None
    zeros = Zeros(training)

    def of_module(original: Any, module: Any, set_to_none: bool = True) -> Any:
        def fill() -> Any:
            return original(module, set_to_none)

        return zeros.zero(module.parameters(), fill, to_none=set_to_none)

    undos = [
        training.on_optimizer(lambda optimizer: _zeroing(optimizer, zeros)),
        training.on_function(torch.nn.Module, "zero_grad", of_module),
    ]

    def undo() -> None:
        for one in undos:
            one()
        zeros.release()

    return undo


LEVER = Lever(
    name="zero_grad_to_none",
    phases=frozenset({Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER}),
    effect=Effect.EXACT,
    scope=Scope.STEP,
    settings=settings,
    gain_ratio=1.3,
    why_not=why_not,
    snippet=lambda _: "optimizer.zero_grad()  # set_to_none=True is torch's own default",
    promising=promising,
    apply=apply,
    edit="loops.zero_grad_to_none",
)
