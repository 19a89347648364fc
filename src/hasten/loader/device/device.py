"""An accelerator as the staging of batches needs it: few enough calls for a test to fake."""

from __future__ import annotations

from typing import Any, Protocol


class Device(Protocol):
    """Copies to one accelerator, on a stream separate from that of the script's kernels."""

    def pinned_empty(self, size_bytes: int) -> Any:
        """Return a new page-locked tensor of so many uint8."""

    def is_ready(self) -> bool:
        """Return whether a copy may start now: not while a graph is captured, for example."""

    def copy(self, source: Any) -> Any:
        """Start a copy of a CPU tensor and return its target.

        Until a later `event` has completed, the source must not change nor the target be used.
        """

    def event(self) -> Any:
        """Return an event after all copies started so far."""

    def has_come(self, event: Any) -> bool:
        """Return whether the copies before `event` are finished."""

    def finish(self, event: Any) -> None:
        """Wait until they are finished: only these copies, not the script's kernels."""

    def hand_over(self, target: Any) -> None:
        """Tell the allocator that the script's stream uses `target` from now on."""


class Accelerator:
    """One device of any kind that has streams and events.

    Args:
        target: a `torch.device` with an index.
    """

    def __init__(self, target: Any) -> None:
        import torch

        module: Any = torch.get_device_module(target)
        self._target = target
        self._stream = module.Stream(target)
        self._within = getattr(module, "stream", lambda stream: stream)
        self._scripts_stream = module.current_stream
        self._is_capturing = getattr(module, "is_current_stream_capturing", lambda: False)

    def pinned_empty(self, size_bytes: int) -> Any:
        """Return a new page-locked tensor of so many uint8."""
        import torch

        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def is_ready(self) -> bool:
        """Return whether no graph is being captured."""
        return not self._is_capturing()

    def copy(self, source: Any) -> Any:
        """Start a copy of a CPU tensor, in memory that belongs to the side stream."""
        import torch

        with self._within(self._stream):
            return torch._C.TensorBase.to(source, self._target, non_blocking=True)

    def event(self) -> Any:
        """Return an event at the end of the side stream."""
        return self._stream.record_event()

    def has_come(self, event: Any) -> bool:
        """Return whether the copies before `event` are finished."""
        return bool(event.query())

    def finish(self, event: Any) -> None:
        """Wait until they are."""
        event.synchronize()

    def hand_over(self, target: Any) -> None:
        """Keep the memory of `target` until the script's stream is done with it."""
        target.record_stream(self._scripts_stream(self._target))


def is_built() -> bool:
    """Return whether this torch was built for an accelerator; no driver is asked."""
    import torch

    accelerator: Any = getattr(torch, "accelerator", None)  # since torch 2.6
    if accelerator is None:
        return torch.version.cuda is not None
    return accelerator.current_accelerator() is not None


def find_device(target: Any, known: dict[Any, Device]) -> Device | None:
    """Return the adapter of an accelerator, of the current one if `target` has no index.

    Args:
        target: a `torch.device`.
        known: the adapters so far; a new one is put there.

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
        known[target] = Accelerator(target)
    return known[target]
