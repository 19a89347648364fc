"""The next pass, begun by idle workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader.indices import foretell
from hasten.loader.workers.tasks import Task

if TYPE_CHECKING:
    from hasten.loader.indices import Stream
    from hasten.loader.loader_state import LoaderState
    from hasten.loader.worker_plan import WorkerPlan
    from hasten.loader.workers.pool import Pool


class LookAhead:
    """Lets idle workers begin the next pass if its beginning can be foreseen.

    Args:
        state: what is known about the loader.
        loader: the script's.
    """

    def __init__(self, state: LoaderState, loader: Any) -> None:
        self._state = state
        self._loader = loader
        self._coming: Stream | None = None
        self._number = 0

    def begin(self, pool: Pool, worker_plan: WorkerPlan) -> None:
        """Begin as many batches as there is room for."""
        if pool.idle_room <= 0 or not self._state.foretells(self._loader, worker_plan, pool):
            return
        if self._coming is None:
            self._coming = foretell(self._loader)
        for_workers = worker_plan.logical_count > 0
        while pool.idle_room > 0:
            indices = self._coming.take(now=True)
            if indices is None:
                return
            task = Task(
                number=self._number,
                indices=indices,
                draws=worker_plan.draws,
                pass_key=self._state.coming_key if for_workers else 0,
                seed=self._coming.seed if for_workers else 0,
                checked=self._state.due(),
            )
            self._number += 1
            pool.begin_early(task)
