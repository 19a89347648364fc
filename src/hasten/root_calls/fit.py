"""What compiled code would not do as plain torch does, and is therefore left to plain torch."""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from hasten.modules import weights_of

if TYPE_CHECKING:
    from collections.abc import Callable

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_ALL_MODULES = tuple(f"_global{kind}" for kind in _HOOKS)


def unfit(module: Any) -> str:
    """Say why a root module stays as it is; empty if it can be compiled."""
    import torch

    if isinstance(module, torch.nn.DataParallel):
        return "the model is spread over devices"
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        return "its ranks exchange gradients while the backward pass goes on"
    if any(getattr(torch.nn.modules.module, kind) for kind in _OF_ALL_MODULES):
        return "hooks are registered for all modules"
    if any(map(has_hooks, weights_of(module))):
        return "its weights have hooks"
    reasons = (_unfit_part(part) for part in module.modules())
    return next(filter(None, reasons), "")


def has_hooks(weight: Any) -> bool:
    """Return whether the script's code runs on a weight's gradient, in an order of its own."""
    late = getattr(weight, "_post_accumulate_grad_hooks", None)
    return bool(weight._backward_hooks or late)


def _unfit_part(part: Any) -> str:
    import torch

    name = type(part).__name__
    if isinstance(part, torch.jit.ScriptModule):
        return f"{name} is TorchScript"
    if compiled_by_script(part):
        return f"the script compiles {name} itself"
    if any(getattr(part, hooks, None) for hooks in _HOOKS):
        return f"{name} has hooks"
    return f"{name} has a forward of its own" if "forward" in vars(part) else ""


def compiled_by_script(part: Any) -> bool:
    """Return whether the script has given a module to torch.compile."""
    forward = getattr(type(part), "forward", None)
    return (
        getattr(part, "_compiled_call_impl", None) is not None
        or hasattr(part, "_orig_mod")
        or hasattr(forward, "_torchdynamo_orig_callable")
    )


def uninitialized(module: Any) -> bool:
    """Return whether a lazy module still waits for its first call."""
    from torch.nn.parameter import is_lazy

    return any(map(is_lazy, weights_of(module)))


@cache
def hooks_on_saved() -> Callable[[bool], Any]:
    """Return torch's function that gives the hooks on what is saved for the backward pass, or None.

    torch before 2.8 has no such function: there the contexts that set them are counted.
    """
    import torch

    core: Any = torch._C._autograd
    known: Callable[[bool], Any] | None = getattr(core, "_top_saved_tensors_default_hooks", None)
    if known is not None:
        return known
    kind: Any = torch.autograd.graph.saved_tensors_hooks
    enter, leave, of_thread = kind.__enter__, kind.__exit__, threading.local()

    def enter_counted(self: Any) -> Any:
        result = enter(self)
        of_thread.count = getattr(of_thread, "count", 0) + 1
        return result

    def leave_counted(self: Any, *error: Any) -> Any:
        of_thread.count = max(getattr(of_thread, "count", 0) - 1, 0)
        return leave(self, *error)

    kind.__enter__, kind.__exit__ = enter_counted, leave_counted
    return lambda _: getattr(of_thread, "count", 0) or None


def plain_surroundings() -> Callable[[], bool]:
    """Return a function that tells whether nothing looks into the operations of a call.

    Modes (operation counters, default devices), transforms (`torch.func`), forward-mode
    derivatives, hooks on what is saved for the backward pass, anomaly detection and profilers would
    see operations other than the script's.
    """
    import torch
    from torch.autograd import forward_ad

    core: Any = torch._C
    profiled = core._autograd._profiler_enabled
    dispatched, functional = core._len_torch_dispatch_stack, core._len_torch_function_stack
    transform = core._functorch.peek_interpreter_stack
    saving = hooks_on_saved()

    def plain() -> bool:
        return not (
            dispatched()
            or functional()
            or transform() is not None
            or saving(True) is not None
            or torch.is_anomaly_enabled()
            or forward_ad._current_level >= 0
            or profiled()
        )

    return plain
