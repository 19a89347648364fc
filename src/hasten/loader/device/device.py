"""An accelerator as the staging of batches needs it: few enough calls to be played by a test."""

from __future__ import annotations

from typing import Any, Protocol


class Device(Protocol):
    """Copies to one accelerator, on a stream beside that of the script's kernels."""

    def pinned_empty(self, size_bytes: int) -> Any:
        """Return a new page-locked tensor of so many uint8."""

    def is_ready(self) -> bool:
        """Return whether a copy may start now: not while a graph is captured, for one."""

    def copy(self, source: Any) -> Any:
        """Start a copy of a CPU tensor and return its target.

        Until an `event` after it has come, the source must not change nor the target be used.
        """

    def event(self) -> Any:
        """Return a mark behind all copies that were started so far."""

    def has_come(self, event: Any) -> bool:
        """Return whether the copies before `event` are finished."""

    def finish(self, event: Any) -> None:
        """Wait until they are: for these copies, not for the script's kernels."""

    def hand_over(self, target: Any) -> None:
        """Tell the allocator that the script's stream uses `target` from now on."""


class Cuda:
    """One CUDA device, or one of ROCm, which answers to the same calls."""

    def __init__(self, target: Any) -> None:
        import torch

        cuda: Any = torch.cuda
        self._target = target
        self._stream = cuda.Stream(target)

    def pinned_empty(self, size_bytes: int) -> Any:
        """Return a new page-locked tensor of so many uint8."""
        import torch

        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def is_ready(self) -> bool:
        """Return whether no graph is being captured."""
        import torch

        return not torch.cuda.is_current_stream_capturing()

    def copy(self, source: Any) -> Any:
        """Start a copy of a CPU tensor, in memory that belongs to the side stream."""
        import torch

        with torch.cuda.stream(self._stream):
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
        """Keep the memory of `target` until the script's stream has done with it."""
        import torch

        target.record_stream(torch.cuda.current_stream(self._target))


def cuda_device(target: Any, known: dict[Any, Device]) -> Device | None:
    """Return the adapter of a CUDA device, the current one where `target` has no index.

    Args:
        target: a `torch.device`.
        known: the adapters so far, by index; a new one is put there.
    """
    import torch

    if target.type != "cuda":
        return None
    index = torch.cuda.current_device() if target.index is None else target.index
    if index not in known:
        known[index] = Cuda(torch.device("cuda", index))
    return known[index]
