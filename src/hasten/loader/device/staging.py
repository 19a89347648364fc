"""Copies of batches to an accelerator that wait for no kernel, started ahead if that pays off.

A plain `tensor.to("cuda")` waits for every kernel that was launched before it, since it copies on
their stream. Here it is copied on a separate stream, and what is returned is finished, as with
torch: a script may do with its CPU tensor what it likes. One that has streams of its own gets
torch's copies.

A copy started before the script asks is made from a snapshot in our own page-locked
memory, so only the script's kernels need to wait for it. It is handed out only if the tensor still
has the bits of the snapshot, all of them compared, so that no write to a tensor goes unseen, not
even through NumPy or `tensor.data`.
"""

from __future__ import annotations

import ctypes
from collections import UserDict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hasten.loader.device.device import Accelerator

_MOST_LEAVES = 64
_MOST_MISSES = 2
_MOST_AHEAD = 2
_MOST_BYTES = 1 << 29  # of page-locked memory


def leaves(batch: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the plain tensors of a batch with their places, without running any user code."""
    import torch

    if type(batch) is torch.Tensor:
        yield place, batch
    elif isinstance(batch, (list, tuple)):
        walk: Any = list.__iter__ if isinstance(batch, list) else tuple.__iter__
        for index, part in enumerate(walk(batch)):
            yield from leaves(part, (*place, index))
    elif isinstance(batch, dict):
        for key, part in dict.items(batch):
            yield from leaves(part, (*place, key))
    elif isinstance(batch, UserDict):
        yield from leaves(vars(batch).get("data"), place)


def written_count(tensor: Any) -> int | None:
    """Return torch's version counter of a tensor; None for inference tensors."""
    return None if tensor.is_inference() else int(tensor._version)


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether elements fill their memory range, each place once, in any order.

    >>> is_dense((2, 3), (3, 1)), is_dense((2, 3), (1, 2)), is_dense((2, 3), (0, 1))
    (True, True, False)
    """
    expected = 1
    for step, count in sorted((s, n) for s, n in zip(stride, size, strict=True) if n != 1):
        if step != expected:
            return False
        expected *= count
    return True


def is_plain(tensor: Any) -> bool:
    """Return whether a move of a `torch.Tensor` is a copy of its memory and nothing else."""
    import torch

    return (
        tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized)
        and not any(getattr(tensor, "names", ()))
        and not (tensor.is_conj() or tensor.is_neg())
        and tensor.numel() > 0
        and (tensor.is_contiguous() or is_dense(tensor.size(), tensor.stride()))
    )


def is_watched() -> bool:
    """Return whether a torch mode (fake tensors, counters, functional transforms) is watching."""
    import torch

    core: Any = torch._C
    return bool(
        core._len_torch_dispatch_stack()
        or core._len_torch_function_stack()
        or core._functorch.peek_interpreter_stack() is not None
        or core._is_tracing()
    )


def target_of(name: str, tensor: Any, args: Any, kwargs: Any) -> tuple[Any, bool] | None:
    """Return where `tensor.to(...)` or `tensor.cuda(...)` goes and whether it is non-blocking.

    None for calls that do more than move the tensor, or that raise.
    """
    import torch

    device, dtype, non_blocking, layout = _asked(name, args, kwargs)
    moves = device is not None and dtype in (None, tensor.dtype)
    return (device, non_blocking) if moves and layout in (None, torch.preserve_format) else None


def reads_back(name: str, tensor: Any, args: Any, kwargs: Any) -> bool:
    """Return whether `tensor.to(...)` copies from a device to the CPU, and waits for nothing.

    A tensor of a subclass counts as on a device.
    """
    import torch

    given = {word: value for word, value in kwargs.items() if word != "copy"}  # it would raise
    if name == "to" and [type(one) for one in args[-2:]] == [bool, bool]:
        args = args[:-1]  # the last one is `copy`
    device, _, non_blocking, _ = _asked(name, args, given)
    if device is None or device.type != "cpu" or not non_blocking:
        return False
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_cpu


def _asked(name: str, args: Any, kwargs: Any) -> Any:
    """Return a call's device, dtype, `non_blocking` and format; no device for one that raises."""
    import torch

    parse: Any = torch._C._nn._parse_to if name == "to" else _parse_cuda
    try:
        return parse(*args, **kwargs)
    except (RuntimeError, TypeError):
        return None, None, False, None


def _parse_cuda(device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    import torch

    if device is None or type(device) is int:
        device = torch.device("cuda") if device is None else torch.device("cuda", device)
    return torch.device(device), None, non_blocking, memory_format


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def is_same(tensor: Any, snapshot: Any) -> bool:
    """Return whether a dense tensor has the geometry and every bit of another."""
    return (
        tensor.dtype == snapshot.dtype
        and tensor.size() == snapshot.size()
        and tensor.stride() == snapshot.stride()
        and not _memcmp(tensor.data_ptr(), snapshot.data_ptr(), snapshot.nbytes)
    )


@dataclass(slots=True)
class CopyTarget:
    """Where the script moves the tensors of one place in the batches of one loader.

    Attributes:
        device: the one that it moved the last one to.
        missed_count: copies started ahead since then.
    """

    device: Accelerator
    missed_count: int = 0


@dataclass(slots=True)
class TensorOrigin:
    """Where a tensor came from: its loader's targets, its place in the batch, its version."""

    aims: dict[tuple[Any, ...], CopyTarget]
    place: tuple[Any, ...]
    written_count: int | None


@dataclass(slots=True)
class _Staged:
    """A copy that was started ahead, and what it was made from.

    Attributes:
        is_early: the script has not got the batch yet.
    """

    aim: CopyTarget
    device: Accelerator
    snapshot: Any
    copied: Any
    event: Any
    is_early: bool = False


class Staging:
    """Answer the script's moves of CPU tensors to an accelerator.

    Args:
        find: returns the adapter of a `torch.device`, None for devices that have none.
        ahead: start copies when a batch arrives, to where the last tensors in its places went.
    """

    def __init__(self, find: Callable[[Any], Accelerator | None], *, ahead: bool) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._find = find
        self.is_ahead = ahead
        self._training = False
        self._retired = False
        self._under_way: list[tuple[Accelerator, Any, Any]] = []
        # By identity and weakly: a tensor that the script made from ours is a different one.
        self._aims: Any = WeakIdKeyDictionary()
        self._seats: Any = WeakIdKeyDictionary()
        self._staged: Any = WeakIdKeyDictionary()

    def begin(self) -> None:
        """Note that training has begun: what is moved from now on is no model or lasting table."""
        self._training = True

    def retire(self) -> None:
        """Answer no more calls, and let go of all copies."""
        self._retired = True
        self._staged.clear()
        self._seats.clear()
        self._let_go()

    # ---- batches

    def arrived(self, loader: Any, batch: Any) -> Any:
        """Take note of a batch that the script will get; the earlier the better.

        Args:
            loader: the one it comes from; None if that is not known.
            batch: the very object that the script will get.

        Returns:
            The same object, untouched.
        """
        if not self._retired:
            try:
                self._note(loader, batch)
            except Exception:  # out of memory, say: the script does without
                self.retire()
        return batch

    def _note(self, loader: Any, batch: Any) -> None:
        aims = {} if loader is None else self._aims.setdefault(loader, {})
        for device in {id(aim.device): aim.device for aim in aims.values()}.values():
            if device.is_ready():
                device.begin_batch()
        is_ahead = self.is_ahead and bool(aims) and _may_copy_ahead()
        for place, tensor in islice(leaves(batch), _MOST_LEAVES):
            staged = self._staged.get(tensor)
            self._seats[tensor] = TensorOrigin(aims, place, written_count(tensor))
            if staged is not None and staged.is_early:
                staged.is_early = False
                continue
            self._staged.pop(tensor, None)  # a data set may hand out the same tensor again
            if is_ahead and place in aims and self._may_stage(loader, tensor, aims[place]):
                self._stage(tensor, aims[place])

    def awaits(self, loader: Any) -> bool:
        """Return whether copies of the next batch of a loader may start before the script has it.

        Not while the kernels of many batches are queued: the host will have to wait for these.
        """
        aims = () if self._retired or not self.is_ahead else self._aims.get(loader, {}).values()
        return bool(aims) and all(aim.device.is_ready() and aim.device.has_room() for aim in aims)

    def coming(self, loader: Any, batch: Any) -> None:
        """Start the copies of a batch that the script will probably get next."""
        try:
            aims = self._aims.get(loader, {}) if _may_copy_ahead() else {}
            for place, tensor in islice(leaves(batch), _MOST_LEAVES):
                if tensor in self._staged or place not in aims:
                    continue
                if self._may_stage(loader, tensor, aims[place]):
                    self._stage(tensor, aims[place], is_early=True)
        except Exception:
            self.retire()

    def _may_stage(self, loader: Any, tensor: Any, aim: CopyTarget) -> bool:
        waiting = list(self._staged.values())
        held_bytes = sum(staged.snapshot.nbytes for staged in waiting)
        return (
            aim.missed_count < _MOST_MISSES
            and sum(staged.aim is aim for staged in waiting) < _MOST_AHEAD
            and held_bytes + tensor.nbytes <= _MOST_BYTES
            and is_plain(tensor)
            and (bool(getattr(loader, "pin_memory", False)) or not tensor.is_pinned())
            and aim.device.is_ready()
        )

    def _let_go(self) -> None:
        """Forget the memory of copies that have come."""
        self._under_way = [each for each in self._under_way if not each[0].has_come(each[1])]

    def _stage(self, tensor: Any, aim: CopyTarget, *, is_early: bool = False) -> None:
        device = aim.device
        self._let_go()
        memory = device.pinned_empty(tensor.nbytes)
        snapshot = memory.view(tensor.dtype).as_strided(tensor.size(), tensor.stride())
        aim.missed_count += 1  # until it is asked for
        snapshot.copy_(tensor)
        copied = device.copy(snapshot)
        event = device.event()
        self._under_way.append((device, event, snapshot))  # it must outlive its copy
        self._staged[tensor] = _Staged(aim, device, snapshot, copied, event, is_early)

    # ---- moves

    def moved(self, original: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
        """Return what `original(tensor, *args, **kwargs)` would, sooner where that is possible."""
        if self._training and not self._retired and not is_watched():
            try:
                found = self._move(original.__name__, tensor, args, kwargs)
            except Exception:  # the script's own call tells what is wrong, if it still is
                self.retire()
            else:
                if found is not None:
                    return found
        return original(tensor, *args, **kwargs)

    def _move(self, name: str, tensor: Any, args: Any, kwargs: Any) -> Any | None:
        import torch

        # Not even an attribute of a subclass is read: that could run code of the script's.
        if type(tensor) is not torch.Tensor or not tensor.is_cpu:
            # Read without a wait, its values must have arrived by the script's next blocking copy.
            if (kwargs or len(args) > 1) and reads_back(name, tensor, args, kwargs):
                self.retire()
            return None
        found = target_of(name, tensor, args, kwargs)
        if found is None or not is_plain(tensor):
            return None
        target, non_blocking = found
        device = self._find(target)
        if device is None or not device.is_ready():
            return None
        return self._hand_out(tensor, device, non_blocking=non_blocking)

    def _hand_out(self, tensor: Any, device: Accelerator, *, non_blocking: bool) -> Any | None:
        seat = self._seats.get(tensor)
        now_count = written_count(tensor)
        untouched = seat is not None and now_count is not None and now_count == seat.written_count
        staged = self._staged.pop(tensor, None)
        if seat is not None:
            aim = seat.aims.setdefault(seat.place, CopyTarget(device))
            aim.device, aim.missed_count = device, 0
        if untouched and staged is not None and _serves(staged, tensor, device):
            copied = staged.copied
            device.follow(staged.event)
        # Page-locked memory may be the target of a copy that the script's stream has yet to make;
        # a move on that stream would wait for it. That is no case for a batch as it was loaded.
        elif not tensor.is_pinned() or (untouched and not non_blocking):
            copied = device.copy(tensor)
            device.finish(device.event())
        else:
            return None
        device.hand_over(copied)
        return copied


def _may_copy_ahead() -> bool:
    import torch

    return not (torch.is_inference_mode_enabled() or is_watched())


def _serves(staged: _Staged, tensor: Any, device: Accelerator) -> bool:
    import torch

    return (
        staged.device is device
        and not torch.is_inference_mode_enabled()
        and is_same(tensor, staged.snapshot)
    )
