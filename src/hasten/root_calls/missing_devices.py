"""Let a script that asks for a device which is not here train on another one."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from functools import cache, partial, wraps
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LIKE = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like",
         "zeros_like")  # fmt: skip
_NEW = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
_EVERYWHERE = ("cpu", "meta")
# What has nothing to do without the device, and what it answers then.
_OF_CUDA = {
    "current_device": 0, "get_device_capability": (0, 0), "get_device_name": "cpu",
    "ipc_collect": None, "max_memory_reserved": 0, "memory_summary": "",
    "reset_max_memory_allocated": None, "reset_peak_memory_stats": None, "set_device": None,
    "set_per_process_memory_fraction": None, "set_rng_state": None, "synchronize": None,
}  # fmt: skip
_OF_NVTX = {"mark": None, "range_pop": 0, "range_push": 0}


@cache
def present() -> str:
    """Return the type of torch's accelerator; empty where this machine has none."""
    import torch

    accelerator: Any = getattr(torch, "accelerator", None)  # since torch 2.6
    if accelerator is None:
        return "cuda" if torch.cuda.is_available() else ""
    return str(accelerator.current_accelerator().type) if accelerator.is_available() else ""


def _has_cuda() -> bool:
    return present() == "cuda"


def substitute(device: Any, target: str) -> Any:
    """Return what stands for a device in a call: `target`, or the device itself if it is here."""
    import torch

    if type(device) is int:
        return device if present() else target
    if isinstance(device, str):
        name = device.partition(":")[0]
    elif isinstance(device, torch.device):
        name = device.type
    else:
        return device
    return device if name in (*_EVERYWHERE, present()) else target


def replace_missing(target: str) -> Callable[[], None]:
    """Answer calls that name a device which is not here as if they named `target`, until undone.

    These are `Tensor.to`, `Tensor.cuda`, all functions that make tensors, generators, `torch.load`,
    the default device, `with torch.device(...)`, and what `torch.cuda` would do to the device
    itself or tell of it: one that has the memory of this machine, and no ability of a GPU's. If
    `target` is the CPU, also kinds of tensors by name (`"torch.cuda.FloatTensor"`), streams and
    events. `is_available` still tells the truth, so a script that asks first takes its own way.
    """
    answers = list(_answers(target))
    own = [(owner, name, vars(owner).get(name)) for owner, name, _ in answers]
    for owner, name, answer in answers:
        if not isinstance(answer, type):
            wraps(getattr(owner, name))(answer)
            if isinstance(owner, ModuleType):  # so that pickle finds it
                answer.__module__, answer.__qualname__ = owner.__name__, name
        setattr(owner, name, answer)

    def undo() -> None:
        for owner, name, original in own:
            if original is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    return undo


def _answers(target: str) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield what is replaced: its owner, its name, and what answers."""
    import torch
    from torch.utils._device import DeviceContext, _device_constructors

    makers = {function.__name__ for function in _device_constructors()}
    for name in (*sorted(makers), *_LIKE):
        if hasattr(torch, name):
            yield torch, name, _with_device(getattr(torch, name), target)
    for name in _NEW:
        yield torch.Tensor, name, _with_device(getattr(torch.Tensor, name), target)
    yield torch.Tensor, "to", _with_device(torch.Tensor.to, target, place=1)
    yield torch.Tensor, "cuda", _cuda(target)
    # For a `map_location` that moves storages.
    yield torch.UntypedStorage, "cuda", _left(torch.UntypedStorage.cuda, _has_cuda)
    yield torch.Tensor, "pin_memory", _left(torch.Tensor.pin_memory, present)
    yield torch, "set_default_device", _with_device(torch.set_default_device, target, place=0)
    # What `with torch.device(...)` begins.
    yield DeviceContext, "__init__", _with_device(DeviceContext.__init__, target, place=1)
    yield torch, "load", _load(torch.load, target)
    generator = _with_device(torch.Generator, target, place=0)
    yield torch, "Generator", _made_by(torch.Generator, generator)
    for owner, told in ((torch.cuda, _OF_CUDA), (torch.cuda.nvtx, _OF_NVTX)):
        for name, answer in told.items():
            yield owner, name, _unless_cuda(getattr(owner, name), partial(_same, answer))
    for name, ask in _ASKED.items():
        yield torch.cuda, name, _unless_cuda(getattr(torch.cuda, name), ask)
    if target == "cpu":
        yield torch.Tensor, "type", _with_kind(torch.Tensor.type, 1, name="dtype")
        set_type: Any = torch.set_default_tensor_type
        yield torch, "set_default_tensor_type", _with_kind(set_type, 0)
        yield from _streams()


def _streams() -> Iterator[tuple[Any, str, Any]]:
    import torch

    cuda: Any = torch.cuda
    instead: tuple[tuple[str, Any], ...] = (
        ("Stream", _Finished), ("Event", _Finished), ("device", nullcontext),
    )  # fmt: skip
    for name, kind in instead:
        original = getattr(cuda, name)
        yield cuda, name, _made_by(original, _unless_cuda(original, kind), kind)
    for name in ("current_stream", "default_stream"):
        yield cuda, name, _unless_cuda(getattr(cuda, name), _Finished)
    yield cuda, "stream", _unless_cuda(cuda.stream, nullcontext)
    yield torch.Tensor, "record_stream", _unless_cuda(torch.Tensor.record_stream, lambda: None)


def _with_kind(original: Callable[..., Any], place: int, *, name: str = "t") -> Callable[..., Any]:
    """Return a function whose kind of tensor, a text at a place or by a name, is here."""

    def here(kind: Any) -> Any:
        is_told = isinstance(kind, str) and not _has_cuda()
        return kind.replace("torch.cuda.", "torch.") if is_told else kind

    def answer(*args: Any, **kwargs: Any) -> Any:
        if name in kwargs:
            kwargs[name] = here(kwargs[name])
        return original(
            *args[:place], *map(here, args[place : place + 1]), *args[place + 1 :], **kwargs
        )

    return answer


def _made_by(original: Any, make: Callable[..., Any], instead: Any = ()) -> Any:
    """Return a class like `original` whose instances, some of class `instead`, `make` makes."""
    kinds = (original, instead) if instead else original

    class Kind(type(original)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        def __instancecheck__(cls, one: Any) -> bool:
            return isinstance(one, kinds)

    return Kind(original.__name__, (original,), {"__module__": original.__module__})


def _with_device(
    original: Callable[..., Any], target: str, place: int | None = None
) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = substitute(kwargs["device"], target)
        if place is not None and len(args) > place:
            args = (*args[:place], substitute(args[place], target), *args[place + 1 :])
        return original(*args, **kwargs)

    return answer


def _cuda(target: str) -> Callable[..., Any]:
    import torch

    original, move = torch.Tensor.cuda, torch.Tensor.to

    def answer(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if _has_cuda():
            return original(tensor, *args, **kwargs)
        return move(tensor, target)

    return answer


def _left(original: Callable[..., Any], is_here: Callable[[], Any]) -> Callable[..., Any]:
    """Return a method that leaves a tensor or storage as it is where no such device is here."""

    def answer(one: Any, *args: Any, **kwargs: Any) -> Any:
        return original(one, *args, **kwargs) if is_here() else one

    return answer


def _load(original: Callable[..., Any], target: str) -> Callable[..., Any]:
    def answer(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        place = target if map_location is None and not present() else map_location
        return original(f, substitute(place, target), *args, **kwargs)

    return answer


def _memory() -> tuple[int, int]:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return page_bytes * os.sysconf("SC_AVPHYS_PAGES"), page_bytes * os.sysconf("SC_PHYS_PAGES")


def _properties() -> Any:
    """Return what a script may ask of a device before it trains there: those of a CPU."""
    return SimpleNamespace(
        name="cpu", major=0, minor=0, total_memory=_memory()[1], warp_size=1,
        multi_processor_count=os.cpu_count() or 1, is_integrated=1, is_multi_gpu_board=0,
    )  # fmt: skip


def _no_state() -> Any:
    import torch

    return torch.ByteTensor()


_ASKED: dict[str, Callable[[], Any]] = {
    "get_device_properties": _properties, "get_rng_state": _no_state, "mem_get_info": _memory,
}  # fmt: skip


def _same(answer: Any) -> Any:
    return answer


def _unless_cuda(original: Callable[..., Any], make: Callable[[], Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: original(*args, **kwargs) if _has_cuda() else make()


class _Finished:
    """A stream or event of CUDA's for a script on the CPU, where a call returns when it is done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._at_s = 0.0

    def query(self) -> bool:
        return True

    def synchronize(self, *args: Any) -> None:
        pass

    wait = wait_event = wait_stream = synchronize

    def record(self, stream: Any = None) -> None:
        self._at_s = time.perf_counter()

    def record_event(self, event: _Finished | None = None) -> _Finished:
        event = event or _Finished()
        event.record()
        return event

    def elapsed_time(self, end: _Finished) -> float:
        return 1e3 * (end._at_s - self._at_s)

    def __enter__(self) -> _Finished:
        return self

    def __exit__(self, *args: object) -> None:
        pass
