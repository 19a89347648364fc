"""device_placement: train the models of a script on another device than it asks for.

Helps: models with large products or convolutions, on a machine with an accelerator that the script
    does not ask for. Set by hand (`--device cpu`), it lets a script that asks for a GPU without
    looking whether there is one train where there is none.
Hurts: small models, which wait for the launch of each kernel, and losses outside the model over
    large outputs, which come back to the CPU in every call.
    Code that calls `forward` by name, hooks that read activations as arrays, and threads that
    read weights may fail.
Maths: distribution. Kernels of another device sum in another order, and random draws inside a
    model (dropout) come from its own generator. Convolutions keep float32, no TF32. A model is
    moved when it is first called, unless the script has moved it; inputs of each call go to the
    accelerator and outputs come back. Losses, data and checkpoints stay on the CPU.
Source: https://docs.pytorch.org/docs/stable/accelerator.html
"""

from __future__ import annotations

import importlib
import re
import warnings
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from hasten.lever import COMPUTE, Lever, undo_all
from hasten.loader.device.device import find_spare_bytes
from hasten.modules import weights_of
from hasten.records import Effect, Phase, Scope
from hasten.root_calls.missing_devices import replace_missing
from hasten.root_calls.snapshot import Snapshot
from hasten.root_calls.values import with_tensors
from hasten.units import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from hasten.lever import ScriptContext, Training

_NAME = re.compile(r"[a-z]\w*(:\d+)?")
_ASSIGNED = frozenset(f"__i{name}__" for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift",
    "rshift",
)) | {"__setitem__", "__set__"}  # fmt: skip
# These take tensors of two devices, or concern a graph rather than numbers.
_LEFT_ALONE = frozenset({"backward", "grad", "copy_", "swap_tensors"})
_READS = frozenset({"numpy", "__array__", "__repr__", "__format__"})
# What a step adds to a forward pass, in trained weights: gradients, two moments of an optimizer,
# and two lists that its foreach form makes on the way.
_STEP_RATIO = 5


def settings(context: ScriptContext) -> tuple[str, ...]:
    """Return torch's accelerator, where the models are on the CPU."""
    torch_facts = context.machine.torch
    accelerator = torch_facts.accelerator if torch_facts else None
    return (accelerator,) if accelerator and context.traits.model.device == "cpu" else ()


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try."""
    model, torch_facts = context.traits.model, context.machine.torch
    if torch_facts is None or torch_facts.accelerator is None:
        return "this machine has no accelerator that torch can use"
    if model.device is None:
        return "no call of a model with weights was seen"
    return context.off_cpu()


def validate(setting: str) -> str:
    """Say what names a device."""
    is_accelerator = _NAME.fullmatch(setting) and setting.partition(":")[0] not in ("cpu", "meta")
    is_device = is_accelerator or setting == "cpu"
    return "" if is_device else "a device of torch's such as cpu, cuda or cuda:1"


class Placement:
    """The models of a script on a device, and the script's own code on the CPU.

    `excuse` takes what keeps a model from the device; the script then stays on the CPU.
    """

    def __init__(self, name: str, excuse: Callable[[Exception], None]) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._name = name
        self._excuse = excuse
        self._device: Any = None
        self._given_up = False
        self._weighed: Any = WeakIdKeyDictionary()
        self._placed: Any = WeakIdKeyDictionary()  # whether they make tensors of their own
        self._optimizers: Any = WeakIdKeyDictionary()
        self._mode: Any = None

    def call(self, module: Any, call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """Make a root call on the device, with inputs from the CPU and outputs back to it.

        A call that fails there, or leaves too little memory for the rest of a step, is repeated on
        the CPU, where everything then continues.
        """
        import torch

        first = next(_state(module), None)
        is_elsewhere = first is not None and module not in self._placed and not first.is_cpu
        if first is None or is_elsewhere or not self._is_there():
            return call(args, kwargs)
        is_first = torch.is_grad_enabled() and module not in self._weighed
        before = Snapshot(module) if is_first else None  # what a repeated call would change twice
        answer = None
        try:
            answer = self._call(module, call, args, kwargs)
            if is_first:
                self._weigh(module)
        except (RuntimeError, TypeError) as error:
            kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
            failed = RuntimeError(f"{kind}{error}")  # without the frames, which hold the graph
        else:
            return answer
        answer = None  # and with it the graph
        try:
            self.leave()
        except RuntimeError:
            raise RuntimeError(f"{self._name} is lost, and the weights there: {failed}") from None
        if before is not None:
            before.restore()
        self._excuse(failed)
        return call(args, kwargs)

    def inside(self) -> AbstractContextManager[Any]:
        """Return a context whose operations are left alone: it runs no code of the script's."""
        return _overrides()._pop_mode_temporarily() if self._is_on() else nullcontext()

    def follow(self, optimizer: Any) -> None:
        """Put the state that a checkpoint gave an optimizer where its weights are.

        Single numbers, such as the count of steps, are on the CPU unless a kernel reads them.
        """
        self._optimizers[optimizer] = None
        groups = [g for g in optimizer.param_groups if g.get("fused") or g.get("capturable")]
        read = {id(parameter) for group in groups for parameter in group["params"]}
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                moves = _is_tensor(value) and (value.dim() or id(parameter) in read)
                if moves and value.device != parameter.device:
                    state[name] = _to(value, parameter.device)

    def saved(self, original: Callable[[Any], str], storage: Any) -> str:
        """Report a saved storage as on the CPU, where it would be without us."""
        tag = original(storage)
        return "cpu" if self._device is not None and tag == str(self._device) else tag

    def _weigh(self, module: Any) -> None:
        """Refuse a device whose memory may not last for the rest of a model's first step.

        A forward pass can be repeated, a backward pass or a step of an optimizer cannot.

        Raises:
            OutOfMemoryError: too little may be left there.
        """
        import torch

        self._weighed[module] = None
        spare_bytes = find_spare_bytes(self._device)
        weights = {id(weight): weight for one in self._placed for weight in weights_of(one)}
        needed_bytes = _STEP_RATIO * sum(w.nbytes for w in weights.values() if w.requires_grad)
        if spare_bytes is not None and spare_bytes < needed_bytes:
            raise torch.cuda.OutOfMemoryError(
                f"a step may take {size(needed_bytes)} of memory on {self._name} beside the model "
                f"and its outputs, and {size(max(0, spare_bytes))} are left"
            )

    def _is_there(self) -> bool:
        """Look for the device at the first call: until then the script may still hide some."""
        import torch

        if self._device is None and not self._given_up:
            try:
                self._device = torch.empty(1, device=self._name).device
            except Exception as error:
                self._given_up = True
                self._excuse(error)
        return not self._given_up

    def _call(self, module: Any, call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        first = next(_state(module))
        if module not in self._placed or first.device != self._device:
            self._place(module)
        args, kwargs = (with_tensors(value, self._moved) for value in (args, kwargs))
        makes = self._device if self._placed[module] else nullcontext()
        with self.inside(), makes:
            answer = call(args, kwargs)
        return with_tensors(answer, _returned)

    def _place(self, module: Any) -> None:
        if any(tensor.is_cpu and tensor.is_shared() for tensor in _state(module)):
            raise RuntimeError("other processes share the weights of the model")
        kinds: set[Any] = {type(part) for part in module.modules()}
        self._placed[module] = any(map(_makes_tensors, kinds))  # to be left, if only a part fits
        with self.inside():
            _move(module, self._device)
        if self._mode is None:
            self._mode = _enter_mode()

    def leave(self) -> None:
        """Take everything back to the CPU, for good."""
        import torch

        self._given_up = True
        with self.inside():
            for module in list(self._placed):
                _move(module, torch.device("cpu"))
            for optimizer in list(self._optimizers):
                self.follow(optimizer)
        if self._is_on():
            self._mode.__exit__(None, None, None)
            self._mode = None
        if self._placed:
            getattr(torch.get_device_module(self._device), "empty_cache", int)()

    def _is_on(self) -> bool:
        return self._mode is not None and _overrides()._get_current_function_mode() is self._mode

    def _moved(self, tensor: Any) -> Any:
        return _to(tensor, self._device) if tensor.is_cpu else tensor


def _overrides() -> Any:
    """Return torch's module for modes; it is not typed."""
    return importlib.import_module("torch.overrides")


def _to(tensor: Any, device: Any) -> Any:
    """Return a tensor on a device, or the tensor itself if it is there already.

    Not by `Tensor.to`, which is watched for the script's moves.
    """
    import torch

    return torch._C.TensorBase.to(tensor, device)


def _returned(tensor: Any) -> Any:
    import torch

    return _to(tensor, torch.device("cpu"))


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _state(module: Any) -> Iterator[Any]:
    yield from weights_of(module)
    yield from module.buffers()


def _move(module: Any, device: Any) -> None:
    """Move weights, buffers and tensors that are mere attributes; weights stay the same objects."""
    import torch

    with torch.inference_mode(False), torch.no_grad():
        module._apply(lambda tensor: _at(tensor, device))
        for part in module.modules():
            own = vars(part)
            loose = {name: value for name, value in own.items() if _is_tensor(value)}
            own.update({name: _to(value, device) for name, value in loose.items()})


def _at(tensor: Any, device: Any) -> Any:
    """Return a tensor on a device; a parameter stays the same object."""
    import torch

    moved = _to(tensor, device)
    is_kept = torch._has_compatible_shallow_copy_type(tensor, moved)
    if is_kept or not isinstance(tensor, torch.nn.Parameter):
        return moved
    # `Module._apply` would make a new parameter that no optimizer knows.
    gradient, tensor.grad = tensor.grad, None
    swap: Any = torch.utils.swap_tensors
    swap(tensor, torch.nn.Parameter(moved, tensor.requires_grad))
    tensor.grad = None if gradient is None else _to(gradient, device)
    return tensor


@cache
def _makes_tensors(kind: type) -> bool:
    from torch.utils._device import _device_constructors

    if kind.__module__.startswith("torch."):
        return False
    makers = {function.__name__ for function in _device_constructors()} - {"range"}  # Python's too
    codes = [getattr(method, "__code__", None) for method in vars(kind).values()]
    return any(code and makers & {*code.co_names} for code in codes) or any(
        _makes_tensors(base) for base in kind.__bases__ if base is not object
    )


def _enter_mode() -> Any:
    """Let the script's operations work on moved weights; None if the script has modes itself.

    Modes form a stack, and leaving one pops whatever is on top.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class ScriptMode(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            name = getattr(function, "__name__", "")
            devices = {tensor.device.type for tensor in _tensors((*args, *kwargs.values()))}
            if name in _READS and devices - {"cpu"}:
                own = args[0]
                here = _returned(own)
                if name == "__repr__":  # it would name how the copy was made
                    here = here.detach().requires_grad_(own.requires_grad)
                return function(here, *args[1:], **kwargs)
            if len(devices) < 2 or name in _LEFT_ALONE:
                return function(*args, **kwargs)
            target = torch.device("cpu")
            written = kwargs.get("out")
            if written is not None or _is_written(name):
                target = next(_tensors((written, *args))).device
            args, kwargs = (
                with_tensors(value, lambda tensor: _to(tensor, target)) for value in (args, kwargs)
            )
            return function(*args, **kwargs)

    if _overrides()._get_current_function_mode() is not None:
        return None
    mode: Any = ScriptMode()
    mode.__enter__()
    return mode


def _is_written(name: str) -> bool:
    return name in _ASSIGNED or (name.endswith("_") and not name.endswith("__"))


def _tensors(values: Any) -> Iterator[Any]:
    for value in values:
        if _is_tensor(value):
            yield value
        elif type(value) in (list, tuple):
            yield from filter(_is_tensor, value)


def apply(training: Training, setting: str) -> Callable[[], None]:
    """Answer for devices that are not here; move models to an accelerator."""
    undos = [replace_missing(setting)]
    if setting != "cpu":
        undos += _place(training, setting)
    return undo_all(undos)


def _place(training: Training, setting: str) -> list[Callable[[], None]]:
    import torch

    placement = Placement(setting, training.excuse)
    # The first kernel of a backward pass that begins on the CPU may be a product.
    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS, but there was no current")
    own_tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False

    def enter(phase: Phase) -> Callable[[], None] | None:
        if phase is not Phase.OPTIMIZER:
            return None
        within = ExitStack()
        within.enter_context(placement.inside())
        return within.close

    def restore() -> None:
        torch.backends.cudnn.allow_tf32 = own_tf32

    return [
        training.on_call(placement.call, innermost=-1),  # around what others do to a call
        training.on_optimizer(placement.follow),
        training.on_phase(enter),
        training.on_function("torch.serialization", "location_tag", placement.saved),
        placement.leave,
        restore,
    ]


LEVER = Lever(
    name="device_placement",
    phases=COMPUTE,
    effect=Effect.DISTRIBUTION,
    scope=Scope.LAUNCH,
    kind=str,
    validate=validate,
    settings=settings,
    gain_ratio=50.0,
    why_not=why_not,
    snippet=lambda name: (
        f'device = torch.device("{name}")\n'
        "model.to(device)  # before the optimizer is made\n"
        "x, y = x.to(device), y.to(device)"
    ),
    provides=lambda name, traits: replace(
        traits, model=replace(traits.model, device=name.partition(":")[0])
    ),
    redundant_with=lambda _, traits: "helpers compute on the CPU" if traits.helper_count else "",
    settle_count=4,
    cures=frozenset({"accelerator-unused"}),
    option="device",
    enables=lambda name: name == "cpu",  # it may ask for a GPU
    apply=apply,
    run_only="every place where the script meets a weight or an output has to be found",
)
