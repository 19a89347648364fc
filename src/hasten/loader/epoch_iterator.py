"""One pass over a loader: who fetches each batch."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hasten.loader import random_states
from hasten.loader.added_workers import LOOP_DRAWS
from hasten.loader.batch_equality import difference
from hasten.loader.cache import file_access
from hasten.loader.indices import foretell, sample_count
from hasten.loader.sources.source import Stock, stock_of
from hasten.loader.worker_plan import worker_plan_as_torchs
from hasten.loader.workers import spot_check
from hasten.loader.workers.observed import Moves, glance, observe
from hasten.loader.workers.pool import StaleWorkers
from hasten.loader.workers.stateful_fetch import doubtful
from hasten.loader.workers.streams import Streams
from hasten.loader.workers.tasks import Draws, Task
from hasten.loader.workers.worker_timeout import WorkersLost, said

if TYPE_CHECKING:
    from hasten.loader.cache_warmup import CacheWarmup, CacheWarmups
    from hasten.loader.indices import Stream
    from hasten.loader.loader_state import LoaderState
    from hasten.loader.sources.checked import Checked
    from hasten.loader.worker_plan import WorkerPlan, WorkerRequest
    from hasten.loader.workers.pool import Pool
    from hasten.loader.workers.tasks import TaskReport


class Wishes(Protocol):
    """What levers want of loaders, at any time: `engine.LoaderEngine`."""

    version: int
    request: WorkerRequest
    offers: list[Any]
    setups: list[Any]
    warmups: CacheWarmups | None


class EpochIterator:
    """The batches of one pass, in order.

    Either the main process fetches, or a pool of workers does, ahead of use. Who it is can
    change in the middle: what has been asked for is delivered first, and the rest of the
    indices goes to the others.

    Where another thread asks for batches than the one of the loop, both draw from the same
    generators at any time: then none is read or put back here, and those fetch who would
    without us.

    Args:
        engine: says what the levers want, at any time.
        state: what is known of the loader.
        loader: the script's.
        stream: the indices of the batches.
        pins: copies a batch into pinned memory where the script's loader would.

    Attributes:
        number: of the next batch that will be asked for.
        chain: the states of the generators before the batch that was asked for last, where the
            draws are handed over, and its samples; None until they are read.
        handed: the states after the batch that was delivered last, there.
        resumes: the states with which streams of the script's workers would go on elsewhere.
        astray: another thread asks for batches than the one that began the pass.
    """

    def __init__(
        self, engine: Wishes, state: LoaderState, loader: Any, stream: Stream, pins: Any
    ) -> None:
        self.state = state
        self.loader = loader
        self.stream = stream
        self.worker_plan: WorkerPlan | None = None
        self.number = 0
        self.chain: tuple[random_states.States, int] | None = None
        self.handed: random_states.States | None = None
        self.resumes: dict[int, random_states.States] = {}
        self.key = state.begin_pass(loader)
        self.astray = state.is_astray
        self._thread = threading.get_ident()
        self._engine = engine
        self._pins = pins
        self._backlog: deque[Any] = deque()
        self._pool: Pool | None = None
        self._here: Any = None
        self._light = False
        self._starts: dict[int, random_states.States] = {}
        self._streams: Streams | None = None
        self._coming: Stream | None = None
        self._coming_number = 0
        self._warmup: CacheWarmup | None = None
        self._version = -1
        self._look: Any = None
        self._ended = False

    def begin(self) -> None:
        """Start the script's own workers where torch does, before the first batch is asked for."""
        if self.loader.num_workers:
            self._restaff()
            if self._pool is not None:
                self._fill(self._pool)

    def next(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: the pass has ended.
        """
        self._ask()
        while True:
            if self._outdated:
                self._restaff()
            pool = self._pool
            if pool is None:
                return self._fetch_here()
            self._fill(pool, now=True)
            if pool.given:
                found = self._collect(pool)
                if found is not None:
                    return found[0]
            elif not self._outdated:
                self._end(pool)

    def _ask(self) -> None:
        if self._ended:
            raise StopIteration
        if not self.astray and threading.get_ident() != self._thread:
            self._stray()
        if self.stream.is_resized:
            self.abandon([])
            self.stream.regroup(list(self._backlog))
            self._backlog.clear()
        self.state.added.pace.ask()

    def _end(self, pool: Pool) -> None:
        pool.release(self)
        self._pool, self._ended = None, True
        self.state.own.end_pass(stale=self.is_stale)
        raise StopIteration

    def leave(self) -> None:
        """End here: another pass of the same iterator begins."""
        if self._pool is not None:
            self._pool.release(self)
        self._pool, self._ended = None, True

    def _stray(self) -> None:
        """Go on as torch would."""
        self.astray = True
        self.state.stray()
        if not self.loader.num_workers:
            self.abandon([])
        self.look_again()

    # ---- who fetches

    @property
    def shared(self) -> bool:
        """Some process plays several of the script's workers."""
        worker_plan = self.worker_plan
        return worker_plan is not None and 0 < worker_plan.count < worker_plan.logical_count

    @property
    def _setups(self) -> tuple[Any, ...]:
        return self.state.items.permit.setups(self._engine.setups)

    @property
    def _outdated(self) -> bool:
        return self._version != self._engine.version

    def _restaff(self) -> None:
        """Let those fetch whom the levers, and what is known by now, ask for."""
        if self._pool is not None and self._pool.given:
            return  # first what has been asked for
        state, loader, self._version = self.state, self.loader, self._engine.version
        worker_plan, light, heavy = self._chosen()
        source = None if heavy is None else heavy.source
        warmups, there = self._engine.warmups, worker_plan.count or state.added.spared_count
        self._warmup = (
            None
            if warmups is None
            else warmups.of(source, loader, self.stream, process_count=there)
        )
        worker_plan = state.added.spare(loader, worker_plan, source, self._warmup)
        if self._pool is not None and self._pool.serves(worker_plan, heavy, self._setups):
            self.worker_plan, self.chain = (
                worker_plan,
                None,
            )  # the same processes, asked for other draws
            return
        if self._pool is not None:
            self._pool.release(self)
        if self._streams is not None:
            self.resumes.update(self._streams.starts)
        self.worker_plan, self._pool, self.chain, self._streams = worker_plan, None, None, None
        self._starts, self.resumes = self.resumes, {}
        self._here, self._light = light or heavy or stock_of(loader), light is not None
        if worker_plan.count:
            self._hire(worker_plan, heavy)
        elif worker_plan.logical_count:
            self._streams = state.own.streams_here(
                loader, key=self.key, seed=self.stream.seed, starts=self._starts
            )

    def _chosen(self) -> tuple[WorkerPlan, Checked | None, Checked | None]:
        """Return who fetches, and with which source, here or in workers."""
        state, loader, engine, pool = self.state, self.loader, self._engine, self._pool
        own, there = int(loader.num_workers), 0 if pool is None else pool.count
        # Torch's workers have the dataset as it was when the pass began.
        if self.astray or (own and pool is not None and self.is_stale):
            worker_plan = worker_plan_as_torchs(own, there)
            return worker_plan, None, pool.source if pool and there == worker_plan.count else None
        light = state.sources.choose(loader, engine.offers, light=True)
        worker_plan = state.worker_plan(loader, engine.request, light)
        return (
            worker_plan,
            light,
            None if light else state.sources.choose(loader, engine.offers, light=False),
        )

    def _hire(self, worker_plan: WorkerPlan, source: Any) -> None:
        """Let worker processes fetch; where they cannot start, a script without any goes on."""
        try:
            self._pool = self.state.hire(self.loader, worker_plan, source, self._setups, self)
        except Exception as error:
            why = f"workers could not be started ({said(error)})"
            if not self.loader.num_workers:
                self.give_up_workers(why, lost=True)
            elif source is None and not self._setups:
                raise
            else:  # what a lever adds to them may not pickle
                self.state.notices.lose(why)
                self._pool = self.state.hire(self.loader, worker_plan, None, (), self)
        self.remember()

    def remember(self) -> None:
        """Keep what the items are made with, as it looks now."""
        self._look = glance(self.loader)

    @property
    def is_stale(self) -> bool:
        """The workers saw another dataset, or collate function, than there is now."""
        return bool(self._look != glance(self.loader))

    def give_up_workers(self, why: str, *, lost: bool = False) -> None:
        """Fetch in the main process from now on.

        Args:
            why: the reason.
            lost: it is a fault of the workers, which the user should hear of.
        """
        self.state.added.refuse(why, lost=lost)
        self.look_again()

    def look_again(self) -> None:
        """Decide anew who fetches, before the next batch."""
        self._version = -1

    def abandon(self, tasks: list[Task], *, dismiss: bool = False) -> None:
        """Throw away what the workers have fetched or will have for `tasks`; ask anew.

        Args:
            tasks: the oldest that were given and not delivered, in order.
            dismiss: end these workers: their copies of the dataset have changed.
        """
        pool = self._pool
        rest = [] if pool is None else pool.discard()
        if pool is not None and dismiss:
            pool.crew.close()
            self._pool = self.worker_plan = None
        again = [*tasks, *rest]
        if again:
            self.number = again[0].number
            self._backlog.extendleft(task.indices for task in reversed(again))
        self.chain = None
        self.look_again()

    # ---- tasks

    def _fill(self, pool: Pool, *, now: bool = False) -> None:
        while pool.room > 0 and not self._outdated:
            indices = self._take(now=now and not pool.given)
            if indices is None:
                if self.stream.ended:
                    self._look_ahead(pool)
                return
            try:
                if not pool.give(self._task(indices, pool)):
                    self.state.foretold_wrongly()
            except WorkersLost as error:
                self._do_without(pool, error)

    def _look_ahead(self, pool: Pool) -> None:
        """Let idle workers begin the next pass, where one can know how it will begin."""
        worker_plan = self.worker_plan
        if pool.idle_room <= 0 or worker_plan is None or self.astray:
            return
        if not self.state.foretells(self.loader, worker_plan, pool):
            return
        if self._coming is None:
            self._coming = foretell(self.loader)
        while pool.idle_room > 0:
            indices = self._coming.take(now=True)
            if indices is None:
                return
            number, self._coming_number = self._coming_number, self._coming_number + 1
            task = Task(
                number=number,
                indices=indices,
                draws=worker_plan.draws,
                pass_key=self.state.coming_key if worker_plan.logical_count else 0,
                seed=self._coming.seed if worker_plan.logical_count else 0,
                checked=self.state.due(),
            )
            pool.begin_early(task)

    def _take(self, *, now: bool) -> Any:
        if self._backlog:
            return self._backlog.popleft()
        if self._warmup is not None:
            return self._warmup.take(self.stream, now=now)
        return self.stream.take(now=now, raw=self._light)

    def _task(self, indices: Any, pool: Pool) -> Task:
        assert self.worker_plan is not None  # noqa: S101  # a pool has a plan
        number, self.number = self.number, self.number + 1
        draws, before = self.worker_plan.draws, None
        if draws is Draws.STREAM:
            before = self._starts.pop(number % self.worker_plan.logical_count, None)
        elif draws is Draws.CHAIN:
            before = self._foresee(sample_count(indices))
        checked = self.state.due()
        for_workers = self.worker_plan.logical_count > 0
        return Task(
            number=number,
            indices=indices,
            draws=draws,
            pass_key=self.key if for_workers else 0,
            seed=self.stream.seed if for_workers else 0,
            states=before,
            hands_over=draws is Draws.CHAIN or self.worker_plan.provisional or self.shared,
            checked=checked,
            probed=self.worker_plan.provisional and self.state.own.first_probe(),
            looked=checked
            or self.worker_plan.provisional
            or self.stream.left_after(number) < pool.count,
        )

    def _foresee(self, count: int) -> random_states.States | None:
        """Return the states before the next batch, None where the one helper goes on itself."""
        if self.chain is None:
            before = random_states.read()
        elif (forecast := self.state.added.forecast) is None:
            return None
        else:
            before = forecast.skip(*self.chain)
        self.chain = before, count
        return before

    # ---- batches

    def _collect(self, pool: Pool) -> tuple[Any] | None:
        """Return the oldest batch, or None where it must be asked for anew."""
        try:
            task, batch, report = pool.take()
        except WorkersLost as error:
            self._do_without(pool, error)
            return None
        except StaleWorkers:
            self.state.foretold_wrongly(stale=True)
            self.abandon([])
            return None
        verdict = believe(self, task, batch, report)
        if verdict.again:
            return None
        self.stream.delivered()
        self._fill(pool)
        if verdict.error is not None:
            raise verdict.error
        if verdict.fetched_here:
            return (self._pins(verdict.batch),)
        if not self.loader.num_workers and self.state.added.pace.of_workers(1e-9 * report.fetch_ns):
            self.look_again()
        return (verdict.batch,)

    def _do_without(self, pool: Pool, error: WorkersLost) -> None:
        """Go on where workers died, hang, or cannot send what they made."""
        given = pool.discard()
        self._pool = None
        pool.crew.close(lost=True)
        self.abandon(given)
        self.give_up_workers(f"a worker was lost ({error})", lost=True)

    def _fetch_here(self) -> Any:
        indices = self._take(now=True)
        if indices is None:
            raise StopIteration
        number, self.number = self.number, self.number + 1
        try:
            if self._streams is not None:
                batch = self._fetch_for_workers(number, indices)
            elif self.astray:
                batch = self._fetch(indices)
            elif self.state.added.curious:
                batch = self._observe(indices)
            else:
                pace, began_s = self.state.added.pace, time.perf_counter()
                batch = self._fetch(indices)
                if pace.is_home and pace.of_main(time.perf_counter() - began_s):
                    self.look_again()
        finally:
            self.stream.delivered()
        return self._pins(batch)

    def _fetch(self, indices: Any) -> Any:
        if self._light:
            return self._here.fetch(indices, fast=self.stream.fast)
        return self._here.fetch(indices)

    def _observe(self, indices: Any) -> Any:
        """Fetch, and see whether other processes could."""
        added, count = self.state.added, sample_count(indices)
        found = added.observe(self.loader, self.key, lambda: self._fetch(indices), count)
        if not added.curious:
            self.look_again()
        if isinstance(found, Exception):
            raise found
        return found

    def _fetch_for_workers(self, number: int, indices: Any) -> Any:
        """Fetch as one of the script's workers would; see now and then that nothing changes."""
        streams = self._streams
        assert streams is not None  # noqa: S101  # the caller has looked

        def fetch() -> Any:
            return streams.fetch(number, lambda: self._fetch(indices))

        if self._light or not self.state.due():
            return fetch()
        found, moves = observe(self.loader, fetch)
        if moves.changed or moves.seeked:
            self.state.own.refuse_here("items change something when they are made here")
            self.look_again()
        if isinstance(found, Exception):
            raise found
        return found


# ---- whether a batch that another process made is the one that the script would have got


@dataclass(slots=True, kw_only=True)
class BatchCheck:
    """What the script gets for a task.

    Attributes:
        batch: the batch.
        fetched_here: it was made in this process, and is not pinned yet.
        error: what the script sees instead.
        again: nothing yet; the task has been put back.
    """

    batch: Any = None
    fetched_here: bool = False
    error: Exception | None = None
    again: bool = False


def believe(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> BatchCheck:
    """Decide about the answer to a task; set right what was assumed wrongly."""
    if task.draws is Draws.CHAIN:
        return _of_chain(epoch, task, batch, report)
    if not epoch.loader.num_workers:
        of = _of_none if task.draws is Draws.NONE else _of_redraws
        return of(epoch, task, batch, report)
    return _of_workers(epoch, task, batch, report)


# ---- the script has workers itself


def _of_workers(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> BatchCheck:
    state = epoch.state
    if report.error is not None:
        return BatchCheck(error=_raised(report.error))
    if task.draws is Draws.NONE:
        if not (report.drew or report.changed or report.unequal):
            return BatchCheck(batch=batch)
        # Nothing was drawn before this batch: the script's streams stand at their start.
        state.items.draws = True
        changes = bool(report.changed or report.unequal)
        if changes:
            state.changes_itself()
        epoch.abandon([task], dismiss=changes)
        return BatchCheck(again=True)
    if report.changed:
        state.changes_itself()
        if epoch.shared:  # each of the script's workers would have a copy of its own
            epoch.abandon([task], dismiss=True)
            return BatchCheck(again=True)
    _learn(epoch, task, batch, report)
    return BatchCheck(batch=batch)


def _learn(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> None:
    """Learn from a batch of the script's own workers whether others could make it."""
    if not task.hands_over:
        return
    curious = epoch.state.items.draws is None and epoch.state.items.keeps and not epoch.astray
    if curious and not report.changed:
        _try_here(epoch, task, batch, report)
        if epoch.state.own.learn(epoch.loader.num_workers, drew=report.drew):
            epoch.look_again()
    epoch.resumes[task.number % epoch.loader.num_workers] = report.states


def _try_here(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> None:
    """Make a batch in this process, too, where the script's workers may be done without."""
    state, index = epoch.state, task.number % epoch.loader.num_workers
    if not state.own.may_go_without or index not in epoch.resumes:
        return
    loader = epoch.loader
    streams = Streams(0, epoch.stream.seed, loader.num_workers, loader.dataset, quiet=False)
    streams.starts[index] = epoch.resumes[index]
    fetch = stock_of(loader).fetch

    def differs() -> bool:
        found, moves = observe(
            loader, lambda: streams.fetch(task.number, lambda: fetch(task.indices))
        )
        moved = isinstance(found, Exception) or moves.changed or moves.seeked
        return moved or streams.starts[index] != report.states or bool(difference(found, batch))

    if doubtful(differs):
        state.own.refuse_here("items made in the main process differ, or change something there")


def _raised(wrapped: Any) -> Exception:
    try:
        wrapped.reraise()
    except Exception as error:
        return error
    raise AssertionError("an exception from a worker must raise")


# ---- the script has none, and the items draw nothing


def _of_none(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> BatchCheck:
    number = epoch.state.added.trust.delivered()
    doubtful = report.error is not None or report.drew or report.changed or report.unequal
    if not (
        doubtful
        or task.checked
        or _reads_otherwise(report)
        or spot_check.differs(epoch.loader, task.indices, batch, number)
    ):
        return _stale(epoch, task) or BatchCheck(batch=batch)
    truth, moves = _truth(epoch, task)
    if moves.drew and not isinstance(truth, Exception):
        epoch.state.items.draws = True
        epoch.abandon([])
    elif why := _why_not_elsewhere(truth, moves, batch, report):
        epoch.abandon([])
        epoch.state.added.trust.tell_broken(why)
        epoch.give_up_workers(why)
    else:
        epoch.state.added.trust.found_equal()
    return _here(truth)


def _why_not_elsewhere(truth: Any, moves: Moves, batch: Any, report: TaskReport) -> str:
    """Say why a batch may not be made in another process; empty where it may."""
    if isinstance(truth, Exception):
        return "" if report.error is not None else "items raise here and not in another process"
    if report.error is not None:
        return f"an item cannot be made in another process ({_raised(report.error)})"
    if report.drew:
        return "items draw random numbers in another process only"
    if report.changed or moves.changed:
        return "the dataset changes while it is read"
    if moves.seeked:
        return "items are read from a file that is open already, whose position is shared"
    found = report.unequal or difference(truth, batch)
    return f"items made in another process, or twice, differ ({found})" if found else ""


# ---- the script has none, and lets workers draw numbers of their own


def _of_redraws(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> BatchCheck:
    if report.error is not None:
        return BatchCheck(error=_raised(report.error))
    if report.changed:
        epoch.abandon([task], dismiss=True)
        epoch.give_up_workers("the dataset changes while it is read")
        return BatchCheck(again=True)
    return _stale(epoch, task) or BatchCheck(batch=batch)


# ---- the script has none, and the items draw what the main process would have drawn


def _of_chain(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> BatchCheck:
    now = random_states.read()
    before = task.states if task.states is not None else epoch.handed
    if before != now:
        # Where nobody else has drawn, the number of draws was foretold wrongly.
        epoch.state.added.missed(LOOP_DRAWS, foretold=epoch.handed == now)
        truth, _ = _truth(epoch, task)
        epoch.handed = random_states.read()
        epoch.abandon([])
        return _here(truth)
    doubtful = report.error is not None or report.changed or report.unequal
    if not (doubtful or task.checked or _reads_otherwise(report)):
        return _stale(epoch, task) or _handed_over(epoch, batch, report)
    truth, moves = _truth(epoch, task)
    epoch.handed = random_states.read()
    why = ""
    if report.error is not None:
        epoch.abandon([])
    elif report.changed or moves.changed or moves.seeked:
        why = "the dataset changes while it is read"
    elif not isinstance(truth, Exception):
        found = report.unequal or difference(truth, batch)
        if not found and report.states != epoch.handed:
            found = "the generators afterwards"
        why = f"items made in another process differ ({found})" if found else ""
    if why:
        epoch.abandon([])
        epoch.give_up_workers(why)
    return _here(truth)


def _reads_otherwise(report: TaskReport) -> bool:
    """Return whether a file that a batch was made of may be another one by now."""
    return report.stamps is None or not file_access.unchanged(report.stamps)


def _handed_over(epoch: EpochIterator, batch: Any, report: TaskReport) -> BatchCheck:
    random_states.restore(report.states)
    epoch.handed = report.states
    return BatchCheck(batch=batch)


def _stale(epoch: EpochIterator, task: Task) -> BatchCheck | None:
    """Put a batch back that was made with another dataset than the script's is by now."""
    if not epoch.is_stale:
        return None
    why = "the script changes the dataset between two batches"
    epoch.abandon([task], dismiss=True)
    epoch.state.added.trust.tell_broken(why)
    epoch.give_up_workers(why)
    return BatchCheck(again=True)


def _truth(epoch: EpochIterator, task: Task) -> tuple[Any, Moves]:
    """Fetch a batch as torch does, here; return it, or what it raised, and what moved."""
    fetch, is_stale = Stock(epoch.loader).fetch, epoch.is_stale
    found, moves = observe(epoch.loader, lambda: fetch(task.indices))
    if not is_stale:
        epoch.remember()  # what items write into themselves is not the script's doing
    return found, moves


def _here(truth: Any) -> BatchCheck:
    if isinstance(truth, Exception):
        return BatchCheck(error=truth)
    return BatchCheck(batch=truth, fetched_here=True)
