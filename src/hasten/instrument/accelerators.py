"""What an accelerator does just now, asked without waking its driver.

A driver that runs reads `CUDA_VISIBLE_DEVICES` no more, and is of no use in a fork.
"""

from __future__ import annotations

from typing import Any


def in_use() -> bool:
    """Return whether the script has begun to use an accelerator."""
    import torch

    kinds: list[Any] = [getattr(torch, name, None) for name in ("cuda", "xpu")]
    return any(kind is not None and kind.is_initialized() for kind in kinds)


def is_capturing() -> bool:
    """Return whether operations go into a CUDA graph: until it ends nobody can read a number."""
    import torch

    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
