"""What is known of one loader, and who fetches for it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from hasten.loader.indices import foreseen
from hasten.loader.proofs import Permit
from hasten.loader.random_states import States, read
from hasten.loader.sources.checked import Checked, due
from hasten.loader.sources.source import drawable, stock_of
from hasten.loader.worker_advantage import WorkerAdvantage
from hasten.loader.worker_plan import (
    HERE,
    WorkerPlan,
    WorkerRequest,
    forks,
    why_not_elsewhere,
    worker_plan_of_workers,
)
from hasten.loader.workers import draw_predictor
from hasten.loader.workers.observed import Moves, observe
from hasten.loader.workers.pools import Pools
from hasten.loader.workers.spot_check import SpotCheck
from hasten.loader.workers.streams import Streams
from hasten.loader.workers.tasks import Draws

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.loader.cache_warmup import CacheWarmup
    from hasten.loader.indices import Stream
    from hasten.loader.notices import Notices
    from hasten.loader.workers.pool import Pool

LOOP_DRAWS = "the training loop draws random numbers between two batches"
_PATIENCE_S = 10.0
_PATIENCE_RATIO = 20.0
_MOST_MISSES = 3
_MOST_VAIN = 2


class Epoch(Protocol):
    """A pass over a loader, as far as its state asks for it: `epoch_iterator.EpochIterator`."""

    loader: Any
    stream: Stream
    key: int
    chain: tuple[States, int] | None

    def look_again(self) -> None:
        """Decide anew who fetches, before the next batch."""


class LoaderState:
    """Everything that is remembered of one loader from pass to pass.

    Args:
        notices: hears what is not done, and why.
        clock: seconds of the loop.

    Attributes:
        pace: who makes batches faster, workers or the main process, where the script has none.
        draws: the items draw random numbers; None while nobody knows.
        keeps: workers may stay from pass to pass.
        is_astray: another thread asks for batches than the one of the loop.
        kept_seed: the base seed of the script's own persistent workers.
        permit: what may be done with the loader.
        trust: how far added workers have been found to be right.
    """

    def __init__(self, notices: Notices, clock: Callable[[], float]) -> None:
        self.notices = notices
        self.trust = SpotCheck(notices)
        self.pace = WorkerAdvantage(clock)
        self.draws: bool | None = None
        self.keeps = True
        self.is_astray = False
        self.kept_seed: int | None = None
        self.permit = Permit()
        self._pass_count = 0
        self._workers_off = ""
        self._here_off = ""
        self._drew = self._whole = self._probed = False
        self._proof_count = self._task_count = self._vain_count = 0
        self._misses = 0
        self._forecast: draw_predictor.DrawPredictor | None = None
        self._observations: list[tuple[int, Moves, int]] = []
        self._slowest_s, self._added_count = 0.0, 0
        self._settled = False
        self._wants_workers = self._wants_none = self._redraws = False
        self._pools = Pools(notices.note)
        self._given_up: set[str] = set()
        self._checked: tuple[str, Checked] | None = None
        self._streams: Streams | None = None

    def begin_pass(self, loader: Any) -> int:
        """Count a pass; return what tells its random streams from those of other passes."""
        self._pass_count += 1
        self.pace.begin_pass()
        stays = loader.persistent_workers and loader.num_workers > 0
        return 0 if stays else self._pass_count

    def end_pass(self, *, stale: bool) -> None:
        """Note that workers have made a pass to its end.

        Args:
            stale: meanwhile the script has changed the dataset, which workers do not see.
        """
        self._whole = not stale

    # ---- what turns out

    def refuse_workers(self, why: str, *, lost: bool = False) -> None:
        """Add no processes from now on."""
        self._workers_off = why
        hear = self.notices.lose if lost else self.notices.note
        hear(f"no worker processes: {why}")
        self.drop_pools()

    def missed(self, why: str, *, foretold: bool) -> None:
        """Note that random numbers were handed over in vain.

        Args:
            why: who drew.
            foretold: nobody else; the number of draws was foretold wrongly.
        """
        self._misses += 1
        if foretold:
            self._forecast = None
        elif self._misses >= _MOST_MISSES:
            self.refuse_workers(why)

    def changes_itself(self) -> None:
        """Note that items change the dataset: each process has its own copy then."""
        self.keeps = False
        self.notices.note("workers do not stay: the dataset changes while it is read")

    def stray(self) -> None:
        """Note that another thread asks for batches than the one of the loop."""
        self.is_astray = True
        self.notices.note(
            "a loader was left alone: its batches are asked for in a thread of their own"
        )

    def refuse_here(self, why: str) -> None:
        """Let workers make the items of a loader that has some."""
        self._here_off = why
        self.notices.note(f"not without workers: {why}")

    @property
    def may_go_without(self) -> bool:
        """The main process should make the items of a loader that has workers, if it can."""
        return self._wants_none and not self._here_off

    def learn_of_workers(self, epoch: Epoch, *, drew: bool) -> None:
        """Note a batch of the script's own workers that left the dataset alone."""
        self._drew = self._drew or drew
        self._proof_count += 1
        if (
            self.keeps
            and self.draws is None
            and self._proof_count >= 2 * int(epoch.loader.num_workers)
        ):
            self.draws = self._drew
            epoch.look_again()

    @property
    def curious(self) -> bool:
        """The next batches should be observed, to know whether other processes may make them."""
        return self._wants_workers and not self._settled and not self._workers_off

    def observe(self, epoch: Epoch, fetch: Callable[[], Any], count: int) -> Any:
        """Fetch a batch here and learn from it.

        Args:
            epoch: the pass.
            fetch: makes the batch.
            count: its samples.
        """
        start_s = time.monotonic()
        found, moves = observe(epoch.loader, fetch)
        self._slowest_s = max(self._slowest_s, time.monotonic() - start_s)
        self._observations.append((epoch.key, moves, count))
        if len(self._observations) > 1:
            self._learn(epoch)
        if isinstance(found, Exception):
            raise found
        return found

    def _learn(self, epoch: Epoch) -> None:
        (old_key, old, _), (key, new, _) = self._observations[-2:]
        drew = [(m.before, m.after, count) for _, m, count in self._observations if m.drew]
        self.draws = bool(drew)
        if new.changed:  # what opens a file at its first item only is no harm
            self.refuse_workers("the dataset changes while it is read")
        elif new.seeked:
            self.refuse_workers(
                "items are read from a file that is open already, whose position is shared"
            )
        elif self._redraws:
            self._settled = True
        elif drew and key == old_key and old.after != new.before:
            self.refuse_workers(LOOP_DRAWS)
        elif not drew:
            self._settled = True
        elif len(drew) > 1:
            self._settled = True
            self._forecast = draw_predictor.learn(drew)
        if not self.curious:
            epoch.look_again()

    def foresee(self, epoch: Epoch, count: int) -> States | None:
        """Return the states before the next batch, None where the one helper goes on itself.

        Args:
            epoch: the pass.
            count: the samples of that batch.
        """
        if epoch.chain is None:
            before = read()
        elif self._forecast is None:
            return None
        else:
            before = self._forecast.skip(*epoch.chain)
        epoch.chain = before, count
        return before

    def due(self) -> bool:
        """Count a batch of other processes; return whether it is compared."""
        self._task_count += 1
        return due(self._task_count - 1)

    def first_probe(self) -> bool:
        """Return True once: looking at items in a fork costs two batches."""
        first, self._probed = not self._probed, True
        return first

    # ---- the next pass

    @property
    def coming_key(self) -> int:
        """What will tell the next pass from others."""
        return self._pass_count + 1

    def foretells(self, loader: Any, worker_plan: WorkerPlan, pool: Pool) -> bool:
        """Return whether the next pass may begin early: its items draw nothing, nobody waits."""
        known = self.draws is False and worker_plan.draws is Draws.NONE and self._may_stay
        stays = loader.persistent_workers and loader.num_workers > 0
        seen = known and not stays and foreseen(loader) == sys.maxsize
        will_stay = pool.seen is not None and pool.seen.is_whole
        return seen and will_stay and self._vain_count < _MOST_VAIN

    @property
    def _may_stay(self) -> bool:
        """Workers may go on to the next pass."""
        return self.keeps and self.permit.is_unchanged

    def foretold_wrongly(self, *, stale: bool = False) -> None:
        """Note that workers began a pass early in vain.

        Args:
            stale: the batches are others by now, and would be the next time.
        """
        self._vain_count += _MOST_VAIN if stale else 1

    # ---- who fetches

    def worker_plan(self, loader: Any, request: WorkerRequest, light: Checked | None) -> WorkerPlan:
        """Decide who fetches for the loader now.

        Args:
            loader: the script's.
            request: what the levers ask for.
            light: a source for the main process, where there is one.
        """
        own = int(loader.num_workers)
        count = own if request.count is None else request.count
        if not self.permit.is_unchanged:  # workers of the script's see what was at their start
            count = max(1, count) if own and self.permit.is_pure else own
        self._wants_workers = not own and count > 0 and light is None
        self._added_count = 0 if own else count
        self._wants_none = own > 0 and count == 0
        if self._wants_none and loader.worker_init_fn is not None and not self._here_off:
            self.refuse_here("each of its workers is set up by a function of the script's")
        if light is not None:
            return HERE if light.pure or not own else WorkerPlan(0, Draws.STREAM, own)
        self._redraws = request.redraws
        if own and request.redraws and count:
            return WorkerPlan(count, Draws.STREAM, count)
        return (
            self._worker_plan_of_workers(loader, own, count) if own else self._added(loader, count)
        )

    @property
    def spared_count(self) -> int:
        """Workers that would make the batches, were these not kept."""
        return self._added_count if self.pace.is_home else 0

    def spare(
        self, loader: Any, worker_plan: WorkerPlan, source: Any, shown: CacheWarmup | None
    ) -> WorkerPlan:
        """Do without added workers where all samples are kept: to make a batch is to copy it.

        Args:
            loader: the script's.
            worker_plan: who would fetch.
            source: what keeps samples, where something does.
            shown: what a trial sees of them.
        """
        if loader.num_workers or not hasattr(source, "is_kept"):
            return worker_plan
        # What they make is taken for the main process's own, and the other way round.
        source.for_workers = self._wants_workers and not self._workers_off
        is_shown = shown is None or shown.is_whole
        if not (worker_plan.count and worker_plan.draws is Draws.NONE and is_shown):
            return worker_plan
        if source.is_kept(None if shown is None else shown.indices):
            self.pace.kept()
        if not self.pace.is_home:
            return worker_plan
        self.drop_pools()
        return HERE

    def _added(self, loader: Any, count: int) -> WorkerPlan:
        """Decide for a loader that has no workers of the script's own."""
        if self._redraws and self._workers_off == LOOP_DRAWS:
            self._workers_off = ""  # that speaks against the script's own numbers only
        if not count or self._unshareable(loader) or self.curious:
            return HERE
        if self._redraws:
            return WorkerPlan(count, Draws.STREAM, count)
        if self.pace.is_home:
            return HERE
        if self.draws:
            return WorkerPlan(count if self._forecast is not None else 1, Draws.CHAIN, 0)
        return WorkerPlan(count, Draws.NONE, 0)

    def _worker_plan_of_workers(self, loader: Any, own: int, count: int) -> WorkerPlan:
        if not (self.keeps and self.permit.is_pure) or (loader.persistent_workers and count <= own):
            return WorkerPlan(own, Draws.STREAM, own)
        is_plain = loader.worker_init_fn is None and forks(loader)
        is_proven = is_plain and self.permit.draws is not None
        if is_proven:  # its workers need not be watched first
            self.draws = self.draws or self.permit.draws
        without = (is_proven or self._whole) and not self._here_off
        return worker_plan_of_workers(own, count, draws=self.draws, without=without)

    def _unshareable(self, loader: Any) -> bool:
        """Return whether the items must be made in the main process; says why, once."""
        if not self._workers_off and (why := why_not_elsewhere(loader)):
            self.refuse_workers(why)
        return bool(self._workers_off)

    # ---- with what

    def source(
        self, loader: Any, offers: Sequence[Callable[[Any], Any]], *, light: bool
    ) -> Checked | None:
        """Return the first source that is offered for the loader as it is now, checked.

        Args:
            loader: the script's loader.
            offers: functions that propose a source, or say why not.
            light: for the main process; False for workers, where light ones do not pay.
        """
        if not self.permit.is_unchanged and (loader.num_workers or not light):
            return None  # it would show changes at once, or not at all
        for offer in offers:
            key = f"{offer.__module__}.{offer.__qualname__}"
            if key in self._given_up:
                continue
            found = offer(loader)
            if isinstance(found, str):
                self.notices.note(found)
                continue
            if getattr(found, "light", False) != light or not drawable(found, loader):
                continue
            return self._trusted(key, found, loader)
        return None

    def _trusted(self, key: str, found: Any, loader: Any) -> Checked:
        # Not this state: what it holds must not hold it.
        given_up, note = self._given_up, self.notices.note

        def give_up(why: str) -> None:
            given_up.add(key)
            note(why)

        if self._checked is not None and self._checked[0] == key:
            checked = self._checked[1]
            checked.source, checked.stock = found, stock_of(loader)
            return checked
        checked = Checked(found, stock_of(loader), on_end=give_up)
        self._checked = key, checked
        return checked

    def pool(
        self, loader: Any, worker_plan: WorkerPlan, source: Any, setups: Sequence[Any], holder: Any
    ) -> Pool:
        """Return workers for a pass."""
        return self._pools.lend(
            loader, worker_plan, source, setups, holder=holder, keeps=self._may_stay,
            patience_s=_PATIENCE_S + _PATIENCE_RATIO * self._slowest_s,
        )  # fmt: skip

    def streams_here(self, epoch: Epoch, logical_count: int, starts: dict[int, States]) -> Streams:
        """Return the random streams of the script's workers, for a pass in this process."""
        if self._streams is None or self._streams.key != epoch.key or epoch.key:
            self._streams = Streams(
                epoch.key, epoch.stream.seed, logical_count, epoch.loader.dataset,
                quiet=self.draws is False,
            )  # fmt: skip
        self._streams.starts.update(starts)
        return self._streams

    def start_over(self) -> None:
        """Forget the workers that stay, and their random streams."""
        self.kept_seed = self._streams = None
        self.drop_pools()

    def drop_pools(self) -> None:
        """End all kept workers that no pass holds; the others go with their pass."""
        self._pools.drop()
