"""The edits, keyed by the names that levers refer to them by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.report.edits.kinds import autocast, loaders, loops, models, optimizers, process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.report.edits.job import Edit

# An edit of one of these moves lines that the others look for, or asks what became of others: it
# comes last.
LAST: tuple[Edit, ...] = (
    process.intra_op_threads,
    models.channels_last,
    models.torch_compile,
    autocast.autocast,
    loops.garbage_collector,
)
_ALL: tuple[Edit, ...] = (
    process.flush_denormals,
    optimizers.foreach_optimizer,
    process.fp32_precision,
    optimizers.fused_optimizer,
    loaders.loader_workers,
    process.malloc_retention,
    loaders.redrawing_workers,
    *LAST,
)
EDITS: Mapping[str, Edit] = {
    f"{edit.__module__.rpartition('.')[2]}.{edit.__name__}": edit for edit in _ALL
}
