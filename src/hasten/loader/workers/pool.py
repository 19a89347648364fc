"""Workers that stay from pass to pass: which tasks they have, and which answers still count."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasten.loader.batch_equality import difference
from hasten.loader.cache import file_access
from hasten.loader.dataset_snapshot import DatasetSnapshot
from hasten.loader.workers.inline_batch import opened
from hasten.loader.workers.tasks import WorkerDataset
from hasten.loader.workers.worker_processes import WorkerProcesses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.loader.worker_plan import WorkerPlan
    from hasten.loader.workers.tasks import Task, TaskReport
    from hasten.loader.workers.worker_timeout import WorkerTimeout

# Restarting workers takes about as long as these looks.
_LOOK_S = 0.25
_LOOK_BYTES = 1 << 28


class StaleWorkers(Exception):
    """A batch that was begun before its pass would be different now."""


@dataclass(eq=False, slots=True)
class SentTask:
    """A task that workers have.

    Attributes:
        task: what they are asked for.
        answer: batch and report, once they have arrived.
        awaited: somebody waits for the answer, and it may still come.
        again: the same task, begun a second time.
        adopted: it was begun early, and its pass has begun.
        is_fresh: its files were still unchanged once it had arrived and been adopted.
    """

    task: Task
    answer: tuple[Any, TaskReport] | None = None
    awaited: bool = True
    again: SentTask | None = None
    adopted: bool = False
    is_fresh: bool = True

    def look(self) -> None:
        """Check whether the files of a batch begun early are what its pass would have read.

        It is not checked later: what the script writes during a pass, torch's workers may also
        have read before the write.
        """
        if self.adopted and self.answer is not None:
            stamps = self.answer[1].stamps
            self.is_fresh = stamps is not None and file_access.unchanged(stamps)


class Pool:
    """The workers of one loader, and the tasks that they have.

    Args:
        loader: the script's loader.
        source: what makes the batches in the workers; None is torch's own way.
        count: worker processes.
        ahead_count: tasks that each worker holds at most.
        logical_count: workers that the script has.
        waiting: how long to wait for a batch.
        stays: whether the workers stay for the next pass.
        seen: what the workers will see of the loader, if they may stay.
        setups: what each worker does before its first batch.

    Attributes:
        processes: the worker processes.
        given: tasks of the current pass that were not taken yet.
        early: tasks that the next pass will probably give.
        seen: what the workers saw of the loader, if they may stay.
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
        stays: bool,
        seen: DatasetSnapshot | None = None,
        setups: Sequence[Any] = (),
    ) -> None:
        self.count = count
        self.logical_count = logical_count
        self.capacity = count * ahead_count
        self.source = source
        self.setups = tuple(setups)
        self.seen = seen
        self._stays = stays
        self.given: deque[SentTask] = deque()
        self.early: deque[SentTask] = deque()
        self._row: deque[SentTask] = deque()
        self._holder: weakref.ref[Any] | None = None
        site = WorkerDataset(loader, source, logical_count=logical_count, setups=setups)
        self.processes = WorkerProcesses(
            loader, site, count=count, ahead_count=ahead_count, waiting=waiting
        )

    # ---- who uses it

    def hold(self, holder: Any, *, realigned: bool = False) -> None:
        """Lend the workers to a pass; what an earlier one left behind is discarded.

        Args:
            holder: the pass.
            realigned: begin with the first worker, as torch does in each pass: streams that
                continue from pass to pass stay with their workers.
        """
        self._holder = weakref.ref(holder)
        self.processes.begin(realigned=realigned)
        self.discard()

    def release(self, holder: Any) -> None:
        """Take the workers back from a pass that has ended."""
        if self._holder is not None and self._holder() is holder:
            self._holder = None
            self.processes.end()
            if not self._stays:
                self.processes.close()

    def serves(self, worker_plan: WorkerPlan, source: Any, setups: Sequence[Any]) -> bool:
        """Return whether these workers are what is requested."""
        same_count = (self.count, self.logical_count) == (
            worker_plan.count,
            worker_plan.logical_count,
        )
        return same_count and self.setups == tuple(setups) and kind(self.source) == kind(source)

    @property
    def free(self) -> bool:
        """Whether no living pass holds it."""
        return self._holder is None or self._holder() is None

    # ---- tasks

    @property
    def room(self) -> int:
        """How many tasks it can take now without waiting."""
        return max(len(self.early), self.capacity - len(self.given))

    @property
    def idle_room(self) -> int:
        """How many tasks it can take in addition to everything in flight."""
        return self.capacity - len(self._row)

    def give(self, task: Task) -> bool:
        """Give a task to the next worker; return False if tasks begun early turn out useless."""
        if self.early and _same(self.early[0].task, task):
            self._adopt(task)
            return True
        in_vain = _drop(self.early)
        self.given.append(SentTask(task))
        self._submit(self.given[-1])
        return not in_vain

    def _adopt(self, task: Task) -> None:
        """Use a task begun early in place of one that is given.

        The first one of a pass is made a second time: since it was begun the script may have
        changed what neither a look at the dataset nor the stamps of its files show.
        """
        early = self.early.popleft()
        early.task = task._replace(checked=task.checked or early.task.checked)
        early.adopted = True
        early.look()
        self.given.append(early)
        if not task.number:
            early.again = SentTask(task)
            self._submit(early.again)

    def begin_early(self, task: Task) -> None:
        """Let workers begin a task that may be given next."""
        early = SentTask(task)
        self._submit(early)
        self.early.append(early)

    def _submit(self, sent: SentTask) -> None:
        while len(self._row) >= self.capacity:
            self._receive()
        self.processes.put(sent.task)
        self._row.append(sent)

    def take(self) -> tuple[Task, Any, TaskReport]:
        """Wait for the batch of the oldest task that was given; return task, batch and report.

        Raises:
            StaleWorkers: it was begun early, and would be different by now.
            WorkersLost: the script never asked for them, and can do without.
            RuntimeError: a worker died, or the time-out passed (torch's own words).
        """
        # A wait that was interrupted may be resumed.
        while not self.given or (answer := self.given[0].answer) is None:
            self._receive()
        sent = self.given[0]
        if not sent.is_fresh:
            _drop(self.early)
            raise StaleWorkers
        batch, report = answer if sent.again is None else self._settle(sent.again, *answer)
        self.given.popleft()
        return sent.task, batch, report

    def _settle(self, again: SentTask, batch: Any, report: TaskReport) -> tuple[Any, TaskReport]:
        """Return the second version of a batch that was begun early, if the first is equal."""
        while again.awaited and again.answer is None:
            self._receive()
        answer = again.answer
        if answer is None or answer[1].error or report.error or _differ(batch, answer[0]):
            _drop(self.early)
            raise StaleWorkers
        return answer

    def _receive(self) -> None:
        """Wait for the next answer; keep it where its task is still wanted."""
        checked = any(sent.task.checked for sent in self._row)
        lost_count, batch, report = self.processes.next_answer(checked=checked)
        for _ in range(lost_count):
            lost = self._row.popleft()
            lost.awaited = False
            for tasks in (self.given, self.early):
                if lost in tasks:
                    tasks.remove(lost)
        sent = self._row.popleft()
        if sent.awaited:
            sent.answer = opened(batch), report
            sent.look()

    def discard(self) -> list[Task]:
        """Discard the answers to all tasks that were given; return the tasks."""
        return _drop(self.given)


def peek(pool: Pool) -> Any:
    """Return the batch of the oldest task that was given if it has arrived, else None."""
    while pool.given and pool.given[0].answer is None and pool.processes.has_answer():
        pool._receive()
    if not pool.given or pool.given[0].again is not None:  # which will be delivered instead
        return None
    answer = pool.given[0].answer
    return None if answer is None else answer[0]


def _drop(tasks: deque[SentTask]) -> list[Task]:
    """Discard the answers to some tasks, whether they have arrived or not; return the tasks."""
    for sent in tasks:
        sent.awaited = False
        if sent.again is not None:
            sent.again.awaited = False
    dropped = [sent.task for sent in tasks]
    tasks.clear()
    return dropped


def _same(early: Task, task: Task) -> bool:
    """Return whether a task begun early makes the batch that is asked for now."""
    alike = early._replace(indices=None, checked=task.checked, looked=task.looked)
    if alike != task._replace(indices=None):
        return False
    ours, theirs = early.indices, task.indices
    if type(ours) is type(theirs) is list and set(map(type, ours + theirs)) <= {int}:
        return bool(ours == theirs)  # `difference` is slow for thousands
    return not _differ(ours, theirs)


def _differ(ours: Any, theirs: Any) -> bool:
    try:
        return bool(difference(ours, theirs))
    except Exception:  # a foreign object may raise anything
        return True


def kind(source: Any) -> str:
    """Return the name of a source; torch's own way has none."""
    return "" if source is None else str(source.name)


def looks(loader: Any) -> DatasetSnapshot:
    """Return what workers that start now would see of a loader."""
    roots = loader.dataset, loader.collate_fn, loader.worker_init_fn
    return DatasetSnapshot(*roots, most_s=_LOOK_S, most_bytes=_LOOK_BYTES)
