"""One pass over a loader: its batches, in order."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasten.loader import random_states
from hasten.loader.added_workers import LOOP_DRAWS
from hasten.loader.batch_equality import difference
from hasten.loader.cache import file_access
from hasten.loader.fetchers import Fetchers, IndexQueue, PassDraws
from hasten.loader.sources.source import Stock, stock_of
from hasten.loader.workers import spot_check
from hasten.loader.workers.inline_batch import as_pickled
from hasten.loader.workers.observed import Moves, let_go, observe
from hasten.loader.workers.stateful_fetch import doubtful
from hasten.loader.workers.streams import Streams
from hasten.loader.workers.tasks import Draws, Task, wrapped
from hasten.loader.workers.worker_processes import WorkersLost

if TYPE_CHECKING:
    from hasten.loader.fetchers import Wishes
    from hasten.loader.indices import Stream
    from hasten.loader.loader_state import LoaderState
    from hasten.loader.workers.pool import Pool
    from hasten.loader.workers.tasks import TaskReport


class EpochIterator:
    """The batches of one pass, in order.

    Either the main process fetches, or a pool of workers does, ahead of use. This can
    change mid-pass: what has already been requested is delivered first, and the remaining
    indices go to whoever fetches next.

    If a thread other than the loop's asks for batches, both may draw from the same
    generators at any time. Then no generator is read or restored here, and batches are fetched
    by whoever would fetch them without hasten.

    Args:
        pins: copies a batch into pinned memory where the script's loader would.
    """

    def __init__(
        self, wishes: Wishes, state: LoaderState, loader: Any, stream: Stream, pins: Any
    ) -> None:
        self.state = state
        self.loader = loader
        self.draws = PassDraws(state.begin_pass(loader), stream.seed)
        self._stream = stream
        self._queue = IndexQueue(stream)
        self.fetchers = Fetchers(wishes, state, loader, self._queue, self.draws)
        self._thread = threading.get_ident()
        self.pins = pins
        self._ended = False

    def begin(self) -> None:
        """Start the script's own workers when torch does, before the first batch is requested."""
        if self.loader.num_workers:
            self.fetchers.decide()
            if self.fetchers.pool is not None:
                self._fill(self.fetchers.pool)

    def next(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: the pass has ended.
        """
        self._ask()
        fetchers = self.fetchers
        while True:
            if fetchers.is_outdated:
                fetchers.decide()
            pool = fetchers.pool
            if pool is None:
                return self._fetch_here()
            self._fill(pool, now=True)
            if pool.given:
                found = self._collect(pool)
                if found is not None:
                    return found[0]
            elif not fetchers.is_outdated:
                self._end()

    def peek(self) -> Any:
        """Return the next batch if workers have sent it already, else None; it is not taken.

        What is found out about it when it is taken may still make it another one.
        """
        pool, here = self.fetchers.pool, threading.get_ident() == self._thread
        if pool is None or self._ended or self.fetchers.astray or not here:
            return None
        return pool.peek()

    def _ask(self) -> None:
        if self._ended:
            raise StopIteration
        if not self.fetchers.astray and threading.get_ident() != self._thread:
            self.fetchers.stray()  # from now on as torch would
            if not self.loader.num_workers:
                self.abandon([])
        if self._stream.is_resized:
            self.abandon([])
            self._stream.regroup()
        self.state.added.pace.ask()

    def _end(self) -> None:
        self.leave()
        self.state.own.end_pass(stale=self.fetchers.seen.is_stale)
        raise StopIteration

    def leave(self) -> None:
        """End the pass here, because another pass of the same iterator begins."""
        self.fetchers.release()
        self._ended = True

    def abandon(self, tasks: list[Task], *, dismiss: bool = False) -> None:
        """Discard `tasks` and everything else the workers were given; request it again.

        Args:
            tasks: the oldest tasks that were given but not delivered, in order.
            dismiss: end these workers, because their copies of the dataset have changed.
        """
        self._queue.put_back([*tasks, *self.fetchers.recall(dismiss=dismiss)])

    # ---- by workers

    def _fill(self, pool: Pool, *, now: bool = False) -> None:
        fetchers = self.fetchers
        while pool.room > 0 and not fetchers.is_outdated:
            taken = self._queue.take(now=now and not pool.given)
            if taken is None:
                return
            try:
                pool.give(self._task(*taken, pool))
            except WorkersLost as error:
                self._do_without(error)

    def _task(self, number: int, indices: Any, pool: Pool) -> Task:
        draws, worker_plan = self.draws, self.fetchers.worker_plan
        before = draws.before(worker_plan, number)
        checked, provisional = self.state.due(), worker_plan.provisional
        for_workers = worker_plan.logical_count > 0
        return Task(
            number=number,
            indices=indices,
            draws=worker_plan.draws,
            pass_key=draws.key if for_workers else 0,
            seed=draws.seed if for_workers else 0,
            states=before,
            hands_over=worker_plan.draws is Draws.CHAIN or provisional or self.fetchers.shared,
            checked=checked,
            probed=provisional and self.state.own.first_probe(),
            looked=checked or provisional or self._stream.left_after(number) < pool.count,
        )

    def _collect(self, pool: Pool) -> tuple[Any] | None:
        """Return the oldest batch, or None if it must be requested again."""
        try:
            task, batch, report = pool.take()
        except WorkersLost as error:
            self._do_without(error)
            return None
        verdict = believe(self, task, batch, report)
        if verdict.again:
            return None
        self._stream.delivered()
        self._fill(pool)
        if verdict.error is not None:
            try:
                raise let_go(verdict.error)
            finally:
                del verdict  # of this frame, which the error holds
        is_theirs = verdict.batch is batch and not self.loader.num_workers
        if is_theirs and self.state.added.pace.of_workers(1e-9 * report.fetch_ns):
            self.fetchers.look_again()
        return (verdict.batch,)

    def _do_without(self, error: WorkersLost) -> None:
        """Carry on after workers died, hung, or could not send what they made."""
        self._queue.put_back(self.fetchers.recall(lost=True))
        self.fetchers.give_up_workers(f"a worker was lost ({error})", lost=True)

    # ---- in the main process

    def _fetch_here(self) -> Any:
        taken = self._queue.take(now=True)
        if taken is None:
            raise StopIteration
        number, indices = taken
        try:
            if self.draws.streams is not None:
                batch = self._fetch_for_workers(self.draws.streams, number, indices)
            elif self.fetchers.astray:
                batch = self.fetchers.fetch(indices)
            elif self.state.added.curious:
                batch = self._observe(indices)
            else:
                pace, began_s = self.state.added.pace, time.perf_counter()
                batch = self.fetchers.fetch(indices)
                if pace.is_home and pace.of_main(time.perf_counter() - began_s):
                    self.fetchers.look_again()
        finally:
            self._stream.delivered()
        return self.pins(batch)

    def _observe(self, indices: Any) -> Any:
        """Fetch, and see whether other processes could do it."""
        fetchers, added = self.fetchers, self.state.added
        found = added.observe(self.loader, self.draws.key, lambda: fetchers.fetch(indices))
        if not added.curious:
            fetchers.look_again()
        if isinstance(found, Exception):
            try:
                raise let_go(found)
            finally:
                del found  # of this frame, which the error holds
        return found

    def _fetch_for_workers(self, streams: Streams, number: int, indices: Any) -> Any:
        """Fetch as one of the script's workers would; check now and then that nothing changes."""

        def fetch() -> Any:
            return streams.fetch(number, lambda: self.fetchers.fetch(indices))

        if self.fetchers.is_light or not self.state.due():
            try:
                return as_pickled(fetch())
            except Exception as error:
                found: Any = error
        else:
            found, moves = observe(self.loader, fetch)
            if moves.changed or moves.seeked:
                self.state.own.refuse_here("items change something when they are made here")
                self.fetchers.look_again()
        if isinstance(found, Exception):
            told = wrapped(let_go(found), number % self.loader.num_workers)
            del found  # of this frame, which the error holds
            raise _raised(told) from None
        return as_pickled(found)


# ---- whether a batch that another process made is the one that the script would have got


@dataclass(slots=True, kw_only=True)
class BatchCheck:
    """What the script gets for a task.

    Attributes:
        batch: the batch.
        error: what the script sees instead.
        again: there is nothing yet, and the task has been put back.
    """

    batch: Any = None
    error: Exception | None = None
    again: bool = False


def believe(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> BatchCheck:
    """Decide whether to believe the answer to a task; correct any wrong assumption."""
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
        if epoch.fetchers.shared:  # each of the script's workers would have its own copy
            epoch.abandon([task], dismiss=True)
            return BatchCheck(again=True)
    _learn(epoch, task, batch, report)
    return BatchCheck(batch=batch)


def _learn(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> None:
    """Learn from a batch of the script's own workers whether others could make it."""
    if not task.hands_over:
        return
    curious = (
        epoch.state.items.draws is None and epoch.state.items.keeps and not epoch.fetchers.astray
    )
    if curious and not report.changed:
        _try_here(epoch, task, batch, report)
        if epoch.state.own.learn(epoch.loader.num_workers, drew=report.drew):
            epoch.fetchers.look_again()
    epoch.draws.resumes[task.number % epoch.loader.num_workers] = report.states


def _try_here(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> None:
    """Make a batch in this process too, if the script's workers may turn out unnecessary."""
    state, index = epoch.state, task.number % epoch.loader.num_workers
    if not state.own.may_go_without or index not in epoch.draws.resumes:
        return
    loader = epoch.loader
    streams = Streams(epoch.draws.seed, loader.num_workers, loader.dataset, quiet=False)
    streams.starts[index] = epoch.draws.resumes[index]
    fetch = stock_of(loader).fetch

    def differs() -> bool:
        found, moves = observe(
            loader, lambda: streams.fetch(task.number, lambda: epoch.pins(fetch(task.indices)))
        )
        moved = isinstance(found, Exception) or moves.changed or moves.seeked
        return moved or streams.starts[index] != report.states or bool(difference(found, batch))

    if doubtful(differs):
        state.own.refuse_here("items made in the main process differ, or change something there")


def _raised(wrapped: Any) -> Exception:
    try:
        wrapped.reraise()
    except Exception as error:
        return error.with_traceback(None)  # of frames that hold it
    raise AssertionError("an exception from a worker must raise")


# ---- the script has none, and the items draw nothing


def _of_none(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> BatchCheck:
    number = epoch.state.added.trust.delivered()
    doubtful = report.error is not None or report.drew or report.changed or report.unequal
    is_old = False
    if not (
        doubtful
        or task.checked
        or (is_old := _reads_otherwise(report))
        or spot_check.differs(epoch.loader, task.indices, batch, number)
    ):
        epoch.state.added.served()
        return _stale(epoch, task) or BatchCheck(batch=batch)
    truth, moves = _truth(epoch, task)
    if moves.drew and not isinstance(truth, Exception):
        epoch.state.items.draws = True
        epoch.abandon([])
    elif why := _why_not_elsewhere(truth, moves, batch, report):
        epoch.abandon([])
        epoch.state.added.trust.tell_broken(why)
        epoch.fetchers.give_up_workers(why)
    else:
        epoch.state.added.trust.found_equal()
        if is_old:
            epoch.state.added.missed("files that items read keep changing")
            epoch.fetchers.look_again()
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
        epoch.fetchers.give_up_workers("the dataset changes while it is read")
        return BatchCheck(again=True)
    return _stale(epoch, task) or BatchCheck(batch=batch)


# ---- the script has none, and the items draw what the main process would have drawn


def _of_chain(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> BatchCheck:
    report = report._replace(states=random_states.as_here(report.states))
    now = random_states.read()
    before = task.states if task.states is not None else epoch.draws.handed
    if before != now:
        epoch.state.added.missed(LOOP_DRAWS)
        truth, _ = _truth(epoch, task)
        epoch.draws.handed = random_states.read()
        epoch.abandon([])
        return _here(truth)
    doubtful = report.error is not None or report.changed or report.unequal
    if not (doubtful or task.checked or _reads_otherwise(report)):
        return _stale(epoch, task) or _handed_over(epoch, batch, report)
    truth, moves = _truth(epoch, task)
    epoch.draws.handed = random_states.read()
    why = ""
    if report.error is not None:
        epoch.abandon([])
    elif report.changed or moves.changed or moves.seeked:
        why = "the dataset changes while it is read"
    elif not isinstance(truth, Exception):
        found = report.unequal or difference(truth, batch)
        if not found and report.states != epoch.draws.handed:
            found = "the generators afterwards"
        why = f"items made in another process differ ({found})" if found else ""
    if why:
        epoch.abandon([])
        epoch.fetchers.give_up_workers(why)
    return _here(truth)


def _reads_otherwise(report: TaskReport) -> bool:
    """Return whether a file that a batch was made from may have changed by now."""
    return report.stamps is None or not file_access.unchanged(report.stamps)


def _handed_over(epoch: EpochIterator, batch: Any, report: TaskReport) -> BatchCheck:
    random_states.restore(report.states)
    epoch.draws.handed = report.states
    epoch.state.added.served()
    return BatchCheck(batch=batch)


def _stale(epoch: EpochIterator, task: Task) -> BatchCheck | None:
    """Put a batch back if the script has changed the dataset since it was made."""
    if not epoch.fetchers.seen.is_stale:
        return None
    why = "the script changes the dataset between two batches"
    epoch.abandon([task], dismiss=True)
    epoch.state.added.trust.tell_broken(why)
    epoch.fetchers.give_up_workers(why)
    return BatchCheck(again=True)


def _truth(epoch: EpochIterator, task: Task) -> tuple[Any, Moves]:
    """Fetch a batch here as torch does; return it, or what it raised, and what changed."""
    fetch, is_stale = Stock(epoch.loader).fetch, epoch.fetchers.seen.is_stale
    found, moves = observe(epoch.loader, lambda: epoch.pins(fetch(task.indices)))
    if not is_stale:
        epoch.fetchers.seen.renew()  # what items write into themselves is not the script's doing
    return found, moves


def _here(truth: Any) -> BatchCheck:
    if isinstance(truth, Exception):
        return BatchCheck(error=truth)
    return BatchCheck(batch=truth)
