"""Which edit writes which lever, and why some levers have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.report.edits.kinds import autocast, loaders, loops, models, optimizers, process

if TYPE_CHECKING:
    from hasten.report.edits.job import Edit

EDITS: dict[str, Edit] = {
    "autocast": autocast.autocast,
    "channels_last": models.channels_last,
    "flush_denormals": process.flush_denormals,
    "foreach_ema": loops.foreach_ema,
    "foreach_optimizer": optimizers.foreach_optimizer,
    "fp32_precision": process.fp32_precision,
    "fused_optimizer": optimizers.fused_optimizer,
    "garbage_collector": loops.garbage_collector,
    "inter_op_threads": process.inter_op_threads,
    "intra_op_threads": process.intra_op_threads,
    "loader_workers": loaders.loader_workers,
    "malloc_retention": process.malloc_retention,
    "redrawing_workers": loaders.redrawing_workers,
    "sdpa": models.sdpa,
    "torch_compile": models.torch_compile,
    "zero_grad_to_none": loops.zero_grad_to_none,
}
# An edit of one of these moves lines that the others look for: it comes last.
LAST = ("channels_last", "torch_compile", "autocast", "garbage_collector")

NO_EDIT = {
    "batched_fetch": "each batch read at once is held against the script's own while it runs",
    "sample_cache": "the cache is shared by all workers, and drops what changes on disk",
    "turbojpeg": "each kind of file is decoded both ways and compared while it runs",
    "device_copies": "a copy that starts early is used only where nobody wrote to it since",
    "thread_binding": "OMP_PROC_BIND would bind the main thread, too, and every loader worker "
    "with it to one core",
    "worker_threads": "each worker compares its first batch with and without the limit",
}

PLACES = {
    "idle_clip": ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad.clip_grad_norm_"),
}
