"""Torch's own worker processes, answering tasks in the order in which they are put."""

from __future__ import annotations

import os
from collections import deque
from itertools import cycle
from typing import TYPE_CHECKING, Any

from hasten.loader.random_states import as_read
from hasten.loader.view import make_worker_iterator
from hasten.loader.workers.early_answers import EarlyAnswers
from hasten.loader.workers.tasks import as_it_is

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.loader.workers.tasks import Task, TaskReport, WorkerDataset
    from hasten.loader.workers.worker_timeout import WorkerTimeout


class _Feed:
    """The queue of tasks that torch's iterator takes as indices; it may run dry and go on later."""

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


class WorkerProcesses:
    """The worker processes of a pool.

    The processes, queues, pinning thread and watchdogs are those of torch's own iterator, which
    is given tasks in place of indices and never reaches the end of its sampler.
    """

    def __init__(
        self,
        loader: Any,
        site: WorkerDataset,
        *,
        count: int,
        ahead_count: int,
        waiting: WorkerTimeout,
    ) -> None:
        self._count = count
        self._feed = _Feed()
        self._torchs = make_worker_iterator(
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
        self._early: EarlyAnswers | None = None
        self._received_count = 0
        self._waiting = waiting

    def begin(self, *, realigned: bool) -> None:
        """Begin a pass; `realigned` with the first worker, as torch does."""
        self._waiting.begin(self._torchs)
        if realigned:
            self._torchs._worker_queue_idx_cycle = cycle(range(self._count))

    def end(self) -> None:
        """End a pass: workers that stay may die, and that is no error."""
        self._waiting.end(self._torchs)

    @property
    def lives(self) -> bool:
        """Whether all workers are alive."""
        return not self._torchs._shutdown and all(w.is_alive() for w in self._torchs._workers)

    def put(self, task: Task) -> None:
        """Hand a task to the next worker."""
        self._feed.waiting.append(task)
        self._torchs._try_put_index()

    def has_answer(self) -> bool:
        """Return whether `next_answer` would return one without waiting."""
        if self._early is None:  # whoever does not look ahead reads torch's queue as it is
            self._early = EarlyAnswers(self._torchs)
        return isinstance(self._early.peek(), (tuple, list))  # torch's pinning makes lists

    def next_answer(self, *, checked: bool) -> tuple[int, Any, TaskReport]:
        """Wait for an answer; return how many tasks before it are lost, the batch and its report.

        Torch skips what a dead worker had, and an interruption may have lost an answer.

        Args:
            checked: batches are made more than once.

        Raises:
            WorkersLost: the script never asked for them, and can do without.
            RuntimeError: a worker died, or the time-out passed (torch's own words).
        """
        batch, report = self._waiting.next_answer(self._torchs, checked=checked)
        lost_count = self._torchs._rcvd_idx - 1 - self._received_count
        self._received_count = self._torchs._rcvd_idx
        if self._torchs._pin_memory:  # torch's pinning turns tuples into lists
            report = report._replace(states=as_read(report.states), stamps=as_read(report.stamps))
        return lost_count, batch, report

    def close(self, *, lost: bool = False) -> None:
        """End the workers, and wait for them; those that are lost may hang."""
        for worker in self._torchs._workers if lost else ():
            if worker._parent_pid == os.getpid():  # else this is a copy of who started them
                worker.kill()
        self._torchs._shutdown_workers()
