"""The workers that a loader has in the script, and who may replace them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.loader.worker_plan import WorkerPlan, forks
from hasten.loader.workers.streams import Streams
from hasten.loader.workers.tasks import Draws

if TYPE_CHECKING:
    from hasten.loader.notices import Notices
    from hasten.loader.proofs import ItemFacts
    from hasten.loader.random_states import States


class OwnWorkers:
    """Whether others may make the batches of the script's own workers, and what was observed."""

    def __init__(self, items: ItemFacts, notices: Notices) -> None:
        self._items = items
        self._notices = notices
        self._here_off = ""
        self._wants_none = False
        self._drew = self._whole = self._probed = False
        self._proof_count = 0
        self._streams: Streams | None = None

    def want(self, loader: Any, count: int) -> None:
        """Note how many processes are requested in place of these workers."""
        self._wants_none = loader.num_workers > 0 and not count
        if self._wants_none and loader.worker_init_fn is not None and not self._here_off:
            self.refuse_here("each of its workers is set up by a function of the script's")

    # ---- what turns out

    def refuse_here(self, why: str) -> None:
        """Let workers make the items from now on."""
        self._here_off = why
        self._notices.note(f"not without workers: {why}")

    @property
    def may_go_without(self) -> bool:
        """Whether the main process should make the items, if it can."""
        return self._wants_none and not self._here_off

    def learn(self, own_count: int, *, drew: bool) -> bool:
        """Note a worker's batch that left the dataset unchanged; return whether that settles it."""
        self._drew = self._drew or drew
        self._proof_count += 1
        items = self._items
        if not items.keeps or items.draws is not None or self._proof_count < 2 * own_count:
            return False
        items.draws = self._drew
        return True

    def first_probe(self) -> bool:
        """Return True only once, because looking at items in a fork costs two batches."""
        first, self._probed = not self._probed, True
        return first

    def end_pass(self, *, stale: bool) -> None:
        """Note that workers have completed a pass.

        Args:
            stale: the script changed the dataset meanwhile, which workers do not see.
        """
        self._whole = not stale

    # ---- who fetches

    def worker_plan(self, loader: Any, count: int) -> WorkerPlan:
        """Decide who fetches when `count` processes are requested.

        Until it is proven, or the first batches have shown, that items leave the dataset alone,
        each of the script's workers has a process of its own.
        """
        own, items = int(loader.num_workers), self._items
        stays = loader.persistent_workers and count <= own
        if not (items.keeps and items.permit.is_pure) or stays:
            return WorkerPlan(own, Draws.STREAM, own)
        is_plain = loader.worker_init_fn is None and forks(loader)
        is_proven = is_plain and items.permit.draws is not None
        if is_proven:  # its workers need not be watched first
            items.draws = items.draws or items.permit.draws
        if items.draws is None:
            if count > own:
                return WorkerPlan(count, Draws.NONE, own)
            return WorkerPlan(own, Draws.STREAM, own, provisional=True)
        if not count and (is_proven or self._whole) and not self._here_off:
            return WorkerPlan(0, Draws.STREAM, own)
        if not items.draws:
            return WorkerPlan(max(1, count), Draws.NONE, own)
        # Every process plays the same number of the script's workers.
        fitting = max((n for n in range(1, own + 1) if own % n == 0 and n <= count), default=1)
        return WorkerPlan(fitting, Draws.STREAM, own)

    def streams_here(
        self, loader: Any, *, key: int, seed: int, starts: dict[int, States]
    ) -> Streams:
        """Return the workers' random streams for a pass in this process."""
        streams = self._streams
        if streams is None or key:
            quiet = self._items.draws is False
            streams = Streams(seed, loader.num_workers, loader.dataset, quiet=quiet)
        self._streams = None if key else streams  # others end with their pass, and the dataset
        streams.starts.update(starts)
        return streams

    def forget_streams(self) -> None:
        """Restart the workers' random streams."""
        self._streams = None
