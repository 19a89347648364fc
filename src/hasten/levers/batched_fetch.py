"""batched_fetch: read all rows of a batch at once where the dataset is a table in memory.

Helps: `TensorDataset` and its kin (`Subset`, `random_split`, `ConcatDataset`, `StackDataset`),
    where Python splits the table row by row and re-collates it; small rows gain most. Classes
    in the script whose `__getitem__` reads rows of arrays, converts and scales them. Also
    torchvision's MNIST, CIFAR, SVHN and their kin, with ToTensor, Normalize, crops and flips.
Hurts: nothing known. A loader whose batches are not identical to the bit keeps torch's fetch.
Maths: exact. The same numbers are copied into fresh memory of the same layout.
Source: https://github.com/pytorch/pytorch/issues/106704
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.lever import Lever, undo_all, unless
from hasten.loader import engine_for
from hasten.loader.sources.offers import OFFERS
from hasten.loader.worker_counts import unproven
from hasten.records import Effect, Phase, Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.lever import ScriptContext, Training


def why_not(context: ScriptContext) -> str:
    """Say why there is nothing to try; empty where there is."""
    loader = context.traits.loader
    if loader is None:
        return "the loop takes its batches from no DataLoader"
    if not loader.is_map_style:
        return "an iterable dataset yields row after row: there is nothing to read at once"
    if loader.unbatched:
        return loader.unbatched
    # Without workers, a source reads what torch would at the same moment: nothing is to be shown.
    return unproven(context) if context.traits.worker_count else ""


def apply(training: Training, setting: bool) -> Callable[[], None]:
    """Offer the sources to every loader; each is taken only where its batches are the same."""
    engine = engine_for(training)
    return undo_all([engine.add(offer) for offer in OFFERS])


LEVER = Lever(
    name="batched_fetch",
    phases=frozenset({Phase.DATA}),
    effect=Effect.EXACT,
    scope=Scope.STEP,
    settings=unless(why_not, True),
    gain_ratio=50.0,
    cures=frozenset({"per-sample-fetch", "per-sample-transforms"}),
    why_not=why_not,
    snippet=lambda setting: (
        "for rows in torch.randperm(len(x)).split(batch_size):  # instead of a DataLoader\n"
        "    batch = x[rows], y[rows]"
    ),
    settle_count=1,
    apply=apply,
    run_only="each batch read at once is compared to the script's own while it runs",
)
