"""An accelerator as the staging of batches needs it: few enough calls for a test to fake."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from hasten.loader.device.streams import ScriptStreams, own_stream

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_BATCHES = 4  # that wait for kernels; beside them one is used


class Accelerator:
    """Copies to one device of any kind, on a stream separate from that of the script's kernels.

    Args:
        target: a `torch.device` with an index.
        mentioned: says where the script's code names streams; empty if nowhere.
    """

    def __init__(self, target: Any, mentioned: Callable[[], str]) -> None:
        import torch

        module: Any = torch.get_device_module(target)
        self._target = target
        self._memory = getattr(module, "mem_get_info", None)
        self._largest_bytes = 0
        self._stream = own_stream(module, target)
        self._streams = ScriptStreams(module, mentioned, self._stream.synchronize)
        self._begun: deque[Any] = deque()
        self._within = getattr(module, "stream", lambda stream: stream)
        self._scripts_stream = module.current_stream
        self._is_capturing = getattr(module, "is_current_stream_capturing", lambda: False)

    def pinned_empty(self, size_bytes: int) -> Any:
        """Return a new page-locked tensor of so many uint8."""
        import torch

        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def is_ready(self) -> bool:
        """Return whether no graph is being captured, and the script has one stream only.

        What torch allocates on one of several is reused there, after all that this stream has then
        waited for. Our copies are reused on our own stream, which waits for nothing of the script.
        """
        return not (self._streams.are_several or self._is_capturing())

    def copy(self, source: Any) -> Any:
        """Start a copy of a CPU tensor and return its target, in memory of the side stream.

        Until a later `event` has completed, the source must not change nor the target be used.

        Raises:
            RuntimeError: copies of this size would take memory that the script may need. Only free
                memory counts: blocks that torch keeps for the script's stream are no use to ours.
        """
        import torch

        if source.nbytes > self._largest_bytes and self._memory is not None:
            free_bytes, _ = self._memory(self._target)
            if free_bytes < (_MOST_BATCHES + 1) * source.nbytes:
                raise RuntimeError("too little memory is free on the device")
            self._largest_bytes = source.nbytes

        with self._within(self._stream):
            return torch._C.TensorBase.to(source, self._target, non_blocking=True)

    def event(self) -> Any:
        """Return an event after all copies started so far."""
        return self._stream.record_event()

    def has_come(self, event: Any) -> bool:
        """Return whether the copies before `event` are finished."""
        return bool(event.query())

    def finish(self, event: Any) -> None:
        """Wait until they are: only these copies, not the script's kernels."""
        event.synchronize()

    def follow(self, event: Any) -> None:
        """Let the script's kernels wait until they are, but not the host.

        The source of these copies must not be the script's, which may change it at once.
        """
        self._scripts_stream(self._target).wait_event(event)

    def hand_over(self, target: Any) -> None:
        """Keep the memory of `target` until the script's stream is done with it."""
        target.record_stream(self._scripts_stream(self._target))

    def begin_batch(self) -> None:
        """Wait for the kernels of old batches, if many are queued: each holds its memory."""
        self._begun.append(self._scripts_stream(self._target).record_event())
        if len(self._begun) > _MOST_BATCHES:
            self._begun.popleft().synchronize()

    def has_room(self) -> bool:
        """Return whether another batch may come without a wait for the kernels of old ones."""
        while self._begun and self._begun[0].query():
            self._begun.popleft()
        return len(self._begun) < _MOST_BATCHES

    def close(self) -> None:
        """Finish all copies, and watch the script no longer."""
        self._stream.synchronize()
        self._streams.close()


def find_spare_bytes(target: Any) -> int | None:
    """Return the memory of a device that this process could still take; None where unknown."""
    import torch

    module: Any = torch.get_device_module(target)
    if not hasattr(module, "mem_get_info"):
        return None
    spare_bytes = int(module.mem_get_info(target)[0])
    if hasattr(module, "memory_reserved"):  # free blocks that the allocator keeps
        spare_bytes += module.memory_reserved(target) - module.memory_allocated(target)
    return spare_bytes


def is_built() -> bool:
    """Return whether this torch was built for an accelerator; no driver is asked."""
    import torch

    accelerator: Any = getattr(torch, "accelerator", None)  # since torch 2.6
    if accelerator is None:
        return torch.version.cuda is not None
    return accelerator.current_accelerator() is not None


def find_device(
    target: Any, known: dict[Any, Accelerator], mentioned: Callable[[], str]
) -> Accelerator | None:
    """Return the adapter of an accelerator, of the current one if `target` has no index.

    Returns:
        None for a device that copies nothing, such as the CPU or `meta`.

    Raises:
        Exception: of any kind, where this device has no streams.
    """
    import torch

    if target.type in ("cpu", "meta"):
        return None
    if target.index is None:
        module: Any = torch.get_device_module(target)
        target = torch.device(target.type, module.current_device())
    if target not in known:
        known[target] = Accelerator(target, mentioned)
    return known[target]
