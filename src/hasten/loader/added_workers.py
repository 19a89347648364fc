"""Workers for a loader that has none in the script."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hasten.loader.worker_advantage import WorkerAdvantage
from hasten.loader.worker_plan import HERE, WorkerPlan, why_not_elsewhere
from hasten.loader.workers.observed import Moves, observe
from hasten.loader.workers.spot_check import SpotCheck
from hasten.loader.workers.tasks import Draws

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.loader.cache_warmup import CacheWarmup
    from hasten.loader.notices import Notices
    from hasten.loader.proofs import ItemFacts
    from hasten.loader.workers.pools import Pools

LOOP_DRAWS = "the training loop draws random numbers between two batches"
_PATIENCE_S = 10.0
_PATIENCE_RATIO = 20.0
_MOST_MISSES = 3
_REPAID_COUNT = 16  # batches


class AddedWorkers:
    """Whether workers are added to a loader, and what has been observed to decide that.

    The first batches are made in the main process and observed there: do they draw, change the
    dataset, or move the position of an open file?

    Attributes:
        pace: who makes batches faster, workers or the main process.
        trust: how far the workers' batches have been found correct.
    """

    def __init__(
        self, items: ItemFacts, pools: Pools, notices: Notices, clock: Callable[[], float]
    ) -> None:
        self.pace = WorkerAdvantage(clock)
        self.trust = SpotCheck(notices)
        self._items = items
        self._pools = pools
        self._notices = notices
        self._off = ""
        self._count = 0
        self._wanted = self._redraws = self._settled = False
        self._miss_count = self._hit_count = 0
        self._observed: tuple[int, Moves] | None = None
        self._slowest_s = 0.0

    def want(self, count: int, *, redraws: bool, light: bool) -> None:
        """Note what is asked for: no workers where the script has some.

        A `light` source of the main process is faster still.
        """
        self._count, self._redraws = count, redraws
        self._wanted = count > 0 and not light

    # ---- what turns out

    def refuse(self, why: str, *, lost: bool = False) -> None:
        """Add no processes from now on."""
        self._off = why
        hear = self._notices.refuse if lost else self._notices.note
        hear(f"no worker processes: {why}")
        self._pools.drop()

    def missed(self, why: str) -> None:
        """Note that a batch was made in vain, and why."""
        self._miss_count += 1
        self._hit_count = 0
        if self._miss_count >= _MOST_MISSES:
            self.refuse(why)

    def served(self) -> None:
        """Note that a batch was used; many repay what a miss cost."""
        self._hit_count += 1
        if self._hit_count >= _REPAID_COUNT:
            self._miss_count = 0

    @property
    def curious(self) -> bool:
        """Whether to observe the next batches, to learn if other processes may make them."""
        return self._wanted and not self._settled and not self._off

    def observe(self, loader: Any, key: int, fetch: Callable[[], Any]) -> Any:
        """Fetch a batch here and learn from it; return it, or the exception that it raised."""
        start_s = time.monotonic()
        found, moves = observe(loader, fetch)
        self._slowest_s = max(self._slowest_s, time.monotonic() - start_s)
        last, self._observed = self._observed, (key, moves)
        if last is not None:
            self._learn(last, self._observed)
        return found

    def _learn(self, last: tuple[int, Moves], this: tuple[int, Moves]) -> None:
        (old_key, old), (key, new) = last, this
        self._items.draws = draws = old.drew or new.drew
        if new.changed:  # opening a file only at the first item does no harm
            self.refuse("the dataset changes while it is read")
        elif new.seeked:
            self.refuse("items are read from a file that is open already, whose position is shared")
        elif self._redraws:
            self._settled = True
        elif draws and key == old_key and old.after != new.before:
            self.refuse(LOOP_DRAWS)
        else:
            self._settled = True

    @property
    def patience_s(self) -> float:
        """How long to wait for one of the workers' batches."""
        return _PATIENCE_S + _PATIENCE_RATIO * self._slowest_s

    # ---- who fetches

    def worker_plan(self, loader: Any) -> WorkerPlan:
        """Decide who fetches for a loader without a light source."""
        if self._redraws and self._off == LOOP_DRAWS:
            self._off = ""  # that rules out only the script's own numbers
        if self._count and not self._off and (why := why_not_elsewhere(loader)):
            self.refuse(why)
        if not self._count or self._off or self.curious:
            return HERE
        if self._redraws:
            return WorkerPlan(self._count, Draws.STREAM, self._count)
        if self.pace.is_home:
            return HERE
        if self._items.draws:
            return WorkerPlan(1, Draws.CHAIN, 0)
        return WorkerPlan(self._count, Draws.NONE, 0)

    @property
    def spared_count(self) -> int:
        """The workers that are spared while the main process makes the batches."""
        return self._count if self.pace.is_home else 0

    def spare(
        self, loader: Any, worker_plan: WorkerPlan, source: Any, shown: CacheWarmup | None
    ) -> WorkerPlan:
        """Do without workers where all samples are kept, as making a batch is just copying it."""
        if loader.num_workers or not hasattr(source, "is_kept"):
            return worker_plan
        # What workers make counts as the main process's own, and vice versa.
        source.for_workers = self._wanted and not self._off
        is_shown = shown is None or shown.is_whole
        if not (worker_plan.count and worker_plan.draws is Draws.NONE and is_shown):
            return worker_plan
        if source.is_kept(None if shown is None else shown.indices):
            self.pace.kept()
        if not self.pace.is_home:
            return worker_plan
        self._pools.drop()
        return HERE
