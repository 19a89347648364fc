"""Worker processes that stay from pass to pass, and answer tasks in the order they were given."""

from __future__ import annotations

import weakref
from collections import deque
from itertools import cycle
from typing import TYPE_CHECKING, Any

from hasten.loader.batch_equality import difference
from hasten.loader.dataset_snapshot import DatasetSnapshot
from hasten.loader.random_states import as_read
from hasten.loader.view import make_crew
from hasten.loader.workers.inline_batch import opened
from hasten.loader.workers.tasks import Task, TaskReport, WorkerDataset, as_it_is

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hasten.loader.worker_plan import WorkerPlan
    from hasten.loader.workers.worker_timeout import WorkerTimeout

# Workers start anew in about the time that these take.
_LOOK_S = 0.25
_LOOK_BYTES = 1 << 28


class StaleWorkers(Exception):
    """A batch that was begun before its pass is another one now."""


class _Feed:
    """The row of tasks that torch's iterator takes its indices from; it ends only for a while."""

    def __init__(self) -> None:
        self.waiting: deque[Task] = deque()

    def __iter__(self) -> Iterator[Task]:
        return self

    def __next__(self) -> Task:
        if not self.waiting:
            raise StopIteration
        return self.waiting.popleft()

    def __len__(self) -> int:
        return len(self.waiting)


class Pool:
    """The workers of one loader.

    The processes, queues, pinning thread and watchdogs are those of torch's own iterator; it
    is given tasks in place of indices, and never comes to the end of its sampler.

    Args:
        loader: the script's loader.
        source: what makes the batches in the workers; None is torch's own way.
        count: worker processes.
        ahead_count: tasks that each worker holds at most.
        logical_count: workers that the script has.
        waiting: how long to wait for a batch.
        seen: what the workers will see of the loader, where they may stay.
        setups: what each worker does before its first batch.

    Attributes:
        given: tasks of the current pass that were not taken yet.
        early: tasks that the next pass will probably give.
        seen: what the workers saw of the loader, where they may stay.
    """

    def __init__(
        self,
        loader: Any,
        source: Any,
        *,
        count: int,
        ahead_count: int,
        logical_count: int,
        waiting: WorkerTimeout,
        seen: DatasetSnapshot | None = None,
        setups: Sequence[Any] = (),
    ) -> None:
        self.count = count
        self.logical_count = logical_count
        self.capacity = count * ahead_count
        self.source = source
        self.given: deque[Task] = deque()
        self.setups = tuple(setups)
        self.seen = seen
        self.early: deque[Task] = deque()
        self._row: deque[Task] = deque()
        self._doubted: Task | None = None
        self._again: Task | None = None
        self._truth: tuple[Any, TaskReport] | None = None
        self._dropped: set[int] = set()
        self._ready: deque[tuple[Task, Any, TaskReport]] = deque()
        self._holder: weakref.ref[Any] | None = None
        self._feed = _Feed()
        site = WorkerDataset(loader, source, logical_count=logical_count, setups=setups)
        self._crew = make_crew(
            loader,
            count,
            dataset=site,
            collate_fn=as_it_is,
            worker_init_fn=site.start,
            prefetch_factor=ahead_count,
            timeout=waiting.timeout_s,
            _index_sampler=self._feed,
            **waiting.start_method,
        )
        self._received_count = 0
        self._waiting = waiting

    # ---- who uses it

    def hold(self, holder: Any, *, realigned: bool = False) -> None:
        """Lend the workers to a pass; what an earlier one left behind will be thrown away.

        Args:
            holder: the pass.
            realigned: begin with the first worker, as torch does at each pass: streams that go
                on from pass to pass stay where they are.
        """
        self._holder = weakref.ref(holder)
        self._waiting.begin(self._crew)
        self.discard()
        if realigned:
            self._crew._worker_queue_idx_cycle = cycle(range(self.count))

    def release(self, holder: Any) -> None:
        """Take the workers back from a pass that has ended."""
        if self._holder is not None and self._holder() is holder:
            self._holder = None
            self._waiting.end(self._crew)

    def serves(self, worker_plan: WorkerPlan, source: Any, setups: Sequence[Any]) -> bool:
        """Return whether these workers are what is asked for."""
        same_count = (self.count, self.logical_count) == (
            worker_plan.count,
            worker_plan.logical_count,
        )
        return same_count and self.setups == tuple(setups) and kind(self.source) == kind(source)

    @property
    def free(self) -> bool:
        """No living pass holds it."""
        return self._holder is None or self._holder() is None

    @property
    def lives(self) -> bool:
        """All workers live."""
        return not self._crew._shutdown and all(w.is_alive() for w in self._crew._workers)

    # ---- tasks

    @property
    def room(self) -> int:
        """How many tasks it would take now without waiting."""
        return max(len(self.early), self.capacity - len(self.given))

    @property
    def idle_room(self) -> int:
        """How many tasks it would take beside everything that is on its way."""
        return self.capacity - len(self._row)

    def give(self, task: Task) -> bool:
        """Give a task to the next worker; return False where one begun early was in vain."""
        if self.early and _same(self.early[0], task):
            self._adopt(task)
            return True
        in_vain = bool(self.early)
        self.drop_early()
        self.given.append(task)
        self._submit(task)
        return not in_vain

    def _adopt(self, task: Task) -> None:
        """Take a task begun early for one that is given.

        The first one of a pass is made a second time: since it was begun the script may have
        written files, or changed what no look at the dataset shows.
        """
        early = self.early.popleft()
        adopted = task._replace(checked=task.checked or early.checked)
        self._row = deque(adopted if one is early else one for one in self._row)
        self.given.append(adopted)
        if not task.number:
            self._doubted, self._again = adopted, task
            self._submit(task)

    def drop_early(self) -> None:
        """Throw away what was begun early."""
        self._drop(self.early)
        self.early.clear()

    def begin_early(self, task: Task) -> None:
        """Let workers begin a task that may be given next."""
        self._submit(task)
        self.early.append(task)

    def _submit(self, task: Task) -> None:
        while len(self._row) >= self.capacity:
            self._receive()
        self._feed.waiting.append(task)
        self._crew._try_put_index()
        self._row.append(task)

    def take(self) -> tuple[Any, TaskReport]:
        """Wait for the batch of the oldest task that was given.

        Raises:
            Stale: it was begun early, and is another one by now.
            WorkersLost: the script never asked for them, and can do without.
            RuntimeError: a worker died, or the time-out passed (torch's own words).
        """
        while not self._ready:  # a wait that was broken off may be gone on with
            self._receive()
        if self._ready[0][0] is self._doubted:
            self._settle()
        self.given.popleft()
        _, batch, report = self._ready.popleft()
        return batch, report

    def _settle(self) -> None:
        """Put the second making of the doubted batch in its place, where the first is equal."""
        while self._again is not None and self._truth is None:
            self._receive()
        task, batch, report = self._ready[0]
        truth, self._doubted, self._again, self._truth = self._truth, None, None, None
        if truth is None or truth[1].error or report.error or _differ(batch, truth[0]):
            raise StaleWorkers
        self._ready[0] = task, *truth

    def _receive(self) -> None:
        """Wait for the next answer; keep it where its task is still wanted."""
        checked = any(task.checked for task in self._row)
        batch, report = self._waiting.next_answer(self._crew, checked=checked)
        # Torch leaves out what a dead worker had, and an interruption may have cost an answer.
        for _ in range(self._crew._rcvd_idx - 1 - self._received_count):
            self._miss()
        self._received_count = self._crew._rcvd_idx
        if type(report.states) is list:
            report = report._replace(states=as_read(report.states))
        task = self._row.popleft()
        if task is self._again:
            self._truth = opened(batch), report
        elif self._still_wanted(task):
            self._ready.append((task, opened(batch), report))

    def _still_wanted(self, task: Task) -> bool:
        if id(task) not in self._dropped:
            return True
        self._dropped.remove(id(task))
        return False

    def _miss(self) -> None:
        """Forget a task that nobody will answer."""
        task = self._row.popleft()
        if task is self._again:
            self._again = None
        elif self._still_wanted(task):
            where = self.given if any(task is one for one in self.given) else self.early
            del where[next(place for place, one in enumerate(where) if one is task)]

    def discard(self) -> None:
        """Throw away the answers to all tasks that were given."""
        self._drop(self.given if self._again is None else [*self.given, self._again])
        self.given.clear()
        self._doubted = self._again = self._truth = None

    def _drop(self, tasks: Iterable[Task]) -> None:
        """Throw away the answers to some tasks, whether they have come or not."""
        unwanted = set(map(id, tasks))
        self._dropped.update(id(task) for task in self._row if id(task) in unwanted)
        self._ready = deque(one for one in self._ready if id(one[0]) not in unwanted)

    def close(self, *, lost: bool = False) -> None:
        """End the workers, and wait for them; those that are lost may hang."""
        for worker in self._crew._workers if lost else ():
            worker.kill()
        self._crew._shutdown_workers()


def _same(early: Task, task: Task) -> bool:
    """Return whether a task begun early makes the batch that is asked for now."""
    alike = early._replace(indices=None, checked=task.checked, looked=task.looked)
    if alike != task._replace(indices=None):
        return False
    ours, theirs = early.indices, task.indices
    if type(ours) is type(theirs) is list and set(map(type, ours + theirs)) <= {int}:
        return bool(ours == theirs)  # what `difference` does takes long for thousands
    return not _differ(ours, theirs)


def _differ(ours: Any, theirs: Any) -> bool:
    try:
        return bool(difference(ours, theirs))
    except Exception:  # an object of somebody else's may raise anything
        return True


def kind(source: Any) -> str:
    """Return the name of a source; torch's own way has none."""
    return "" if source is None else str(source.name)


def looks(loader: Any) -> DatasetSnapshot:
    """Return what workers that start now would see of a loader."""
    roots = loader.dataset, loader.collate_fn, loader.worker_init_fn
    return DatasetSnapshot(*roots, most_s=_LOOK_S, most_bytes=_LOOK_BYTES)
