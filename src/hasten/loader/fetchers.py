"""Who fetches the batches of one pass, in which order, and with whose random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hasten.loader import random_states
from hasten.loader.notices import said
from hasten.loader.sources.source import stock_of
from hasten.loader.view import Unknown
from hasten.loader.worker_plan import HERE, WorkerPlan
from hasten.loader.workers.observed import LastGlance
from hasten.loader.workers.tasks import Draws

if TYPE_CHECKING:
    from hasten.loader.cache_warmup import CacheWarmup, CacheWarmups
    from hasten.loader.indices import Stream
    from hasten.loader.loader_state import LoaderState
    from hasten.loader.own_workers import OwnWorkers
    from hasten.loader.random_states import States
    from hasten.loader.sources.checked import Checked
    from hasten.loader.worker_plan import WorkerRequest
    from hasten.loader.workers.pool import Pool
    from hasten.loader.workers.streams import Streams
    from hasten.loader.workers.tasks import Task


class Wishes(Protocol):
    """What levers currently want for loaders: `engine.LoaderEngine`."""

    version: int
    request: WorkerRequest
    offers: list[Any]
    setups: list[Any]
    warmups: CacheWarmups | None


class IndexQueue:
    """Numbers the batches of a pass in order; some are put back and handed out again.

    Attributes:
        warmup: what a trial's pass shows; None for the script's own order.
        raw: our own tensors will do.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._number = 0
        self.warmup: CacheWarmup | None = None
        self.raw = False

    def take(self, *, now: bool) -> tuple[int, Any] | None:
        """Return the number and indices of the next batch, or None if there are none (yet).

        Args:
            now: the script wants this very batch.
        """
        if self.warmup is not None:
            indices = self.warmup.take(self.stream, now=now)
        else:
            indices = self.stream.take(now=now, raw=self.raw)
        if indices is None:
            return None
        self._number += 1
        return self._number - 1, indices

    def put_back(self, tasks: list[Task]) -> None:
        """Queue the batches of these tasks again, ahead of all others."""
        if tasks:
            self._number = tasks[0].number
            self.stream.put_back([task.indices for task in tasks])


class PassDraws:
    """The state of the random numbers of one pass.

    Args:
        key: sets its random streams apart from those of other passes.
        seed: its base seed.

    Attributes:
        handed: the states after the last batch delivered, where the main process hands over
            its own.
        resumes: the states from which the script's workers' streams would continue elsewhere.
        streams: the streams of the script's workers, if the main process plays them.
    """

    def __init__(self, key: int, seed: int) -> None:
        self.key = key
        self.seed = seed
        self.handed: States | None = None
        self.resumes: dict[int, States] = {}
        self.streams: Streams | None = None
        self._starts: dict[int, States] = {}
        self._chains = False

    def restart_chain(self) -> None:
        """Have the main process's states read again before the next batch is requested."""
        self._chains = False

    def hand_over(self) -> None:
        """Let others continue the streams of the script's workers, where their states are known."""
        if self.streams is not None:
            self.resumes.update(self.streams.starts)
        self._starts, self.resumes, self.streams = self.resumes, {}, None

    def play(self, own: OwnWorkers, loader: Any) -> None:
        """Let the main process play the script's workers."""
        self.streams = own.streams_here(loader, key=self.key, seed=self.seed, starts=self._starts)

    def before(self, worker_plan: WorkerPlan, number: int) -> States | None:
        """Return the states before a workers' batch; None if they continue from their own."""
        if worker_plan.draws is Draws.STREAM:
            return self._starts.pop(number % worker_plan.logical_count, None)
        if worker_plan.draws is Draws.NONE or self._chains:
            return None  # the only worker of a chain continues from its own states
        self._chains = True
        return random_states.read()


class Fetchers:
    """Who fetches in a pass: a pool of workers, ahead of use, or the main process.

    The choice is made again when the levers' wishes change or something is learned. What workers
    have been asked to fetch is delivered first.

    Attributes:
        pool: the workers; None where the main process fetches.
        is_light: whether the main process has a source made for it.
        seen: a look, as the workers started, at what the items are made with.
        astray: whether a thread other than the one that began the pass asks for batches.
    """

    def __init__(
        self, wishes: Wishes, state: LoaderState, loader: Any, queue: IndexQueue, draws: PassDraws
    ) -> None:
        self.worker_plan = HERE
        self.pool: Pool | None = None
        self.is_light = False
        self.seen = LastGlance(loader)
        self.astray = state.is_astray
        self._wishes = wishes
        self._state = state
        self._loader = loader
        self._queue = queue
        self._draws = draws
        self._here: Any = None
        self._heavy: Checked | None = None
        self._version = -1

    @property
    def is_outdated(self) -> bool:
        """Whether the decision is to be made again."""
        return self._version != self._wishes.version

    def look_again(self) -> None:
        """Decide again who fetches, before the next batch."""
        self._version = -1

    @property
    def shared(self) -> bool:
        """Whether some process plays several of the script's workers."""
        return 0 < self.worker_plan.count < self.worker_plan.logical_count

    # ---- who it is

    def decide(self) -> None:
        """Choose who fetches, by what the levers want and what is known by now."""
        if self.pool is not None and self.pool.given:
            return  # what has been requested comes first
        self._version = self._wishes.version
        self._draws.restart_chain()
        worker_plan, light, heavy = self._chosen()
        self.worker_plan = self._spared(worker_plan, light, heavy)
        if self.pool is not None and self.pool.serves(self.worker_plan, heavy, self._setups):
            return  # the same processes, but different draws
        self.release()
        self._draws.hand_over()
        self._here, self.is_light = light or heavy or stock_of(self._loader), light is not None
        if self.worker_plan.count:
            self._start(heavy)
        elif self.worker_plan.logical_count:
            self._draws.play(self._state.own, self._loader)

    def _chosen(self) -> tuple[WorkerPlan, Checked | None, Checked | None]:
        """Return who fetches, and with which source, here or in workers."""
        state, loader, wishes, pool = self._state, self._loader, self._wishes, self.pool
        own, there = int(loader.num_workers), 0 if pool is None else pool.count
        # Torch's workers have the dataset as it was when the pass began.
        if self.astray or (own and pool is not None and self.seen.is_stale):
            count = there if own and there and own % there == 0 else own
            worker_plan = WorkerPlan(count, Draws.STREAM, own) if own else HERE
            return worker_plan, None, self._heavy if pool and there == count else None
        light, self._heavy = state.sources.choose(loader, wishes.offers)
        return state.worker_plan(loader, wishes.request, light), light, self._heavy

    def _spared(
        self, worker_plan: WorkerPlan, light: Checked | None, heavy: Checked | None
    ) -> WorkerPlan:
        """Return who fetches where samples may be kept; a trial is shown later passes."""
        added, warmups, queue = self._state.added, self._wishes.warmups, self._queue
        source = None if heavy is None else heavy.source
        shown: CacheWarmup | None = None
        if warmups is not None:
            count = worker_plan.count or added.spared_count
            shown = warmups.of(source, self._loader, queue.stream, process_count=count)
        queue.warmup, queue.raw = shown, light is not None
        return added.spare(self._loader, worker_plan, source, shown)

    @property
    def _setups(self) -> tuple[Any, ...]:
        return self._state.items.permit.setups(self._wishes.setups)

    def _start(self, source: Any) -> None:
        """Let worker processes fetch; if they cannot start, a script without workers goes on."""
        state, loader = self._state, self._loader
        try:
            self.pool = state.pool(loader, self.worker_plan, source, self._setups, self)
        except Exception as error:
            cause = error.__cause__ if isinstance(error, Unknown) else error
            why = f"workers could not be started ({said(cause or error)})"
            if not loader.num_workers:
                self.give_up_workers(why, lost=True)
            elif source is None and not self._setups:
                raise
            else:  # what a lever adds to them may not be picklable
                state.notices.refuse(why)
                self._heavy = None
                self.pool = state.pool(loader, self.worker_plan, None, (), self)
        self.seen.renew()

    # ---- what turns out

    def give_up_workers(self, why: str, *, lost: bool = False) -> None:
        """Fetch in the main process from now on.

        Args:
            why: the reason.
            lost: the workers failed, which the user should be told.
        """
        self._state.added.refuse(why, lost=lost)
        self.look_again()

    def stray(self) -> None:
        """Let whoever would fetch without hasten do so."""
        self.astray = True
        self._state.stray()
        self.look_again()

    def recall(self, *, dismiss: bool = False, lost: bool = False) -> list[Task]:
        """Discard what workers have fetched or are fetching; return the tasks they were given.

        Args:
            dismiss: end them, because their copies of the dataset have changed.
            lost: end them, because they died or hang.
        """
        self.look_again()
        pool = self.pool
        if pool is None:
            return []
        tasks = pool.discard()
        if dismiss or lost:
            self.worker_plan, self.pool = HERE, None
            pool.processes.close(lost=lost)
        return tasks

    def release(self) -> None:
        """Release the workers for use by other passes."""
        if self.pool is not None:
            self.pool.release(self)
        self.pool = None

    def fetch(self, indices: Any) -> Any:
        """Fetch a batch in the main process."""
        if self.is_light:
            return self._here.fetch(indices, fast=self._queue.stream.fast)
        return self._here.fetch(indices)
