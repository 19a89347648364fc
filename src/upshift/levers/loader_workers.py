"""loader_workers: how many processes fetch batches ahead, kept from epoch to epoch.

Helps: loops that wait for data: decoding, augmentation, slow storage; many short epochs.
Hurts: cheap datasets, where sending a batch costs more than making it; memory, one copy each.
Maths: redraw. The samples and the law of their order stay. A dataset that draws random numbers
    draws others, and where it drew in the main process, later passes are shuffled otherwise. A
    dataset that draws nothing gives the same bits, which the proof then says.
Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from upshift.lever import Lever
from upshift.loader import board_of
from upshift.records import Effect, Phase, Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from upshift.lever import Scene, Training


def settings(scene: Scene) -> tuple[int, ...]:
    """Return the number that would hide the fetching behind the rest of the step, and others.

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


def why_not(scene: Scene) -> str:
    """Say why there is nothing to try."""
    if "loader.workers" not in scene.traits:
        return "the loop takes its batches from no DataLoader"
    if scene.baseline is None:
        return "there is no profile yet that says how long a batch takes"
    if not scene.traits.get("loader.map_style"):
        return "an iterable dataset splits its stream by worker: its samples would change"
    return "the script's own number of workers is the only one that fits this machine"


def pull(training: Training, count: int) -> Callable[[], None]:
    """Take every map-style loader over; batches that were asked for are drained first."""
    board = board_of(training)
    board.want(count)
    return lambda: board.want(None)


LEVER = Lever(
    name="loader_workers",
    phases=frozenset({Phase.DATA}),
    effect=Effect.REDRAW,
    switch=Switch.CHILD,
    settings=settings,
    gain_ratio=50.0,
    why_not=why_not,
    lines=lambda count: f"DataLoader(..., num_workers={count}, persistent_workers=True)",
    settle_count=4,
    cycle_count=lambda count: 2 * count,
    pull=pull,
)
