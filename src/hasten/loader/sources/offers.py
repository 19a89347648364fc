"""The sources that read a batch at once, in the order in which each loader is offered to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader.sources import arrays, batched_items, gather
from hasten.loader.sources.gather import why_not_collated
from hasten.loader.sources.subsets import leaves

if TYPE_CHECKING:
    from collections.abc import Callable

# The first to return a source gets the loader.
OFFERS: tuple[Callable[[Any], Any], ...] = (gather.offer, arrays.offer, batched_items.offer)


def why_not_batched(loader: Any) -> str:
    """Say why no source reads a loader's batches at once; empty where one does."""
    if why := why_not_collated(loader):
        return why
    found = leaves(loader.dataset)
    if isinstance(found, str):
        return found
    if any(not isinstance(offer(loader), str) for offer in OFFERS):
        return ""
    return f"only the code of {type(found[0]).__name__} can make its items"
