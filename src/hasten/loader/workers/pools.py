"""The worker processes of one loader that stay from pass to pass."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from hasten.loader.worker_plan import stay
from hasten.loader.workers.pool import Pool, looks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.loader.worker_plan import WorkerPlan

_MOST_IDLE = 4


class IdlePools:
    """Ends the workers of loaders that were not used for long, as in a list of folds."""

    def __init__(self) -> None:
        self._pools: list[weakref.ref[Pool]] = []  # in order of their last use

    def use(self, pool: Pool) -> None:
        """Note that a pass uses these workers; of those that none uses, end all but the last."""
        known = [one for ref in self._pools if (one := ref()) is not None and one is not pool]
        idle = [one for one in known if one.free and one.processes.lives]
        for one in idle[:-_MOST_IDLE]:
            one.processes.close()
        self._pools = [weakref.ref(one) for one in (*known, pool) if one.processes.lives]


class Pools:
    """Lends workers to passes, and keeps those that may stay."""

    def __init__(self, note: Callable[[str], None], idle: IdlePools) -> None:
        self._note = note
        self._idle = idle
        self._kept: dict[tuple[int, int], Pool] = {}

    def lend(
        self,
        loader: Any,
        worker_plan: WorkerPlan,
        source: Any,
        setups: Sequence[Any],
        *,
        holder: Any,
        keeps: bool,
        patience_s: float,
    ) -> Pool:
        """Return workers for a pass, the `holder`: kept ones if they saw this state of the loader.

        Those of an added pool are waited for `patience_s`; `keeps` says whether new ones may stay.
        """
        key = (worker_plan.count, worker_plan.logical_count)
        kept = self._kept.get(key)
        own_stay = stay(loader)
        seen = looks(loader) if keeps and not own_stay else None
        if kept is not None and kept.free:
            same = (
                seen is not None and kept.serves(worker_plan, source, setups) and kept.seen == seen
            )
            # The streams of the script's own persistent workers continue in the kept ones.
            if kept.processes.lives and (own_stay or same):
                kept.hold(holder, realigned=own_stay)
                if not own_stay:  # those that the script keeps are its own affair
                    self._idle.use(kept)
                return kept
            if seen is not None and not seen.is_whole:
                self._note("workers do not stay: to see what they are made with takes too long")
            kept.processes.close()
            del self._kept[key]
        pool = Pool(
            loader,
            source,
            worker_plan=worker_plan,
            patience_s=patience_s,
            stays=own_stay or (seen is not None and seen.is_whole),
            seen=seen,
            setups=setups,
        )
        pool.hold(holder, realigned=own_stay)
        if not own_stay:
            self._idle.use(pool)
        if key not in self._kept:  # of two simultaneous passes, the second one's end with it
            self._kept[key] = pool
        return pool

    def drop(self) -> None:
        """End all kept workers that no pass holds; the others go with their pass."""
        pools, self._kept = self._kept, {}
        for pool in pools.values():
            if pool.free:
                pool.processes.close()
