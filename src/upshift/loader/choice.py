"""How many worker processes are worth a trial, from what one profile says."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from upshift.records import Phase

if TYPE_CHECKING:
    from upshift.lever import Scene


def counts(scene: Scene) -> tuple[int, ...]:
    """Return the numbers of workers to try, the most promising first.

    A batch takes `data` seconds to fetch and the rest of the step `rest`: with all else equal
    n = data / rest workers keep up. The script's own number stands in too, where it has
    workers: they are then kept between epochs.
    """
    own = scene.traits.get("loader.workers")
    if own is None or not scene.traits.get("loader.map_style") or scene.baseline is None:
        return ()
    cores = scene.machine.budget.core_count
    waiting = scene.baseline.share_ratio(Phase.DATA) * max(1, int(own))
    hiding = ceil(waiting / max(1e-3, 1 - scene.baseline.share_ratio(Phase.DATA)))
    best = max(1, min(hiding, cores))
    ladder = (best, cores, 2 * best, max(1, best // 2), int(own))
    kept = bool(scene.traits.get("loader.persistent"))
    return tuple(dict.fromkeys(n for n in ladder if 0 < n <= 2 * cores and not (kept and n == own)))


def replayable(scene: Scene, count: int) -> bool:
    """Return whether `count` workers can make the very batches that the script makes."""
    traits = scene.traits
    own = int(traits.get("loader.workers", 0))
    if own:
        return count <= own or not traits.get("loader.draws")
    if traits.get("loader.own_order"):
        return False
    return not (traits.get("loader.draws") and traits.get("loop.draws"))


def why_none(scene: Scene) -> str:
    """Say why no number of workers is worth a trial."""
    if "loader.workers" not in scene.traits:
        return "the loop takes its batches from no DataLoader"
    if scene.baseline is None:
        return "there is no profile yet that says how long a batch takes"
    if not scene.traits.get("loader.map_style"):
        return "an iterable dataset splits its stream by worker: its samples would change"
    return "the script's own number of workers is the only one that fits this machine"
