"""Everything that is remembered of one loader from pass to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader.added_workers import AddedWorkers
from hasten.loader.own_workers import OwnWorkers
from hasten.loader.proofs import ItemFacts
from hasten.loader.sources.checked import Checked, due
from hasten.loader.sources.offered import OfferedSources
from hasten.loader.worker_plan import HERE, WorkerPlan, WorkerRequest, stay
from hasten.loader.workers.pools import Pools
from hasten.loader.workers.tasks import Draws

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.loader.notices import Notices
    from hasten.loader.workers.pool import Pool
    from hasten.loader.workers.pools import IdlePools


class LoaderState:
    """Everything that is remembered of one loader from pass to pass.

    Attributes:
        items: what is known about its items.
        sources: what may make its batches faster.
        pools: its persistent workers.
        added: decides who fetches if the script has no workers.
        own: decides who fetches if the script has some.
        is_astray: whether a thread other than the loop's asks for batches.
        kept_seed: the base seed of the script's own persistent workers.
    """

    def __init__(self, notices: Notices, clock: Callable[[], float], idle: IdlePools) -> None:
        self.notices = notices
        self.items = ItemFacts()
        self.sources = OfferedSources(self.items, notices)
        self.pools = Pools(notices.note, idle)
        self.added = AddedWorkers(self.items, self.pools, notices, clock)
        self.own = OwnWorkers(self.items, notices)
        self.is_astray = False
        self.kept_seed: int | None = None
        self._pass_count = self._task_count = 0

    def begin_pass(self, loader: Any) -> int:
        """Count a pass; return a key that sets its random streams apart from other passes'."""
        self._pass_count += 1
        self.added.pace.begin_pass()
        return 0 if stay(loader) else self._pass_count

    def due(self) -> bool:
        """Count a batch made by another process; return whether to compare it."""
        self._task_count += 1
        return due(self._task_count - 1)

    # ---- what turns out

    def changes_itself(self) -> None:
        """Note that items change the dataset, so that each process has its own version."""
        self.items.keeps = False
        self.notices.note("workers do not stay: the dataset changes while it is read")

    def stray(self) -> None:
        """Note that a thread other than the loop's asks for batches."""
        self.is_astray = True
        self.notices.note(
            "a loader was left alone: its batches are asked for in a thread of their own"
        )

    # ---- who fetches

    def worker_plan(self, loader: Any, request: WorkerRequest, light: Checked | None) -> WorkerPlan:
        """Decide who fetches for the loader now."""
        own, permit = int(loader.num_workers), self.items.permit
        count = own if request.count is None else request.count
        if not permit.is_unchanged:  # the script's workers see what was there at their start
            count = max(1, count) if own and permit.is_pure else own
        self.added.want(0 if own else count, redraws=request.redraws, light=light is not None)
        self.own.want(loader, count)
        if light is not None:
            return HERE if light.pure or not own else WorkerPlan(0, Draws.STREAM, own)
        if own and request.redraws and count:
            return WorkerPlan(count, Draws.STREAM, count)
        return self.own.worker_plan(loader, count) if own else self.added.worker_plan(loader)

    def pool(
        self, loader: Any, worker_plan: WorkerPlan, source: Any, setups: Sequence[Any], holder: Any
    ) -> Pool:
        """Return workers for a pass."""
        keeps = self.items.keeps and self.items.permit.is_unchanged
        return self.pools.lend(
            loader, worker_plan, source, setups, holder=holder, keeps=keeps,
            patience_s=self.added.patience_s,
        )  # fmt: skip

    def start_over(self) -> None:
        """Forget the persistent workers and their random streams."""
        self.kept_seed = None
        self.own.forget_streams()
        self.pools.drop()
