"""Workers that stay from pass to pass: which tasks they have, and which answers still count."""

from __future__ import annotations

import os
import resource
import sys
import weakref
from collections import deque
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any

from hasten.loader.dataset_snapshot import DatasetSnapshot
from hasten.loader.workers.inline_batch import opened
from hasten.loader.workers.tasks import WorkerDataset
from hasten.loader.workers.worker_processes import WorkerProcesses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.loader.worker_plan import WorkerPlan
    from hasten.loader.workers.tasks import Task, TaskReport

# Restarting workers takes about as long as these looks.
_LOOK_S = 0.25
_LOOK_BYTES = 1 << 28
_DESCRIPTORS_COUNT = 1 << 16
_PREFETCH_COUNT = 2


@dataclass(eq=False, slots=True)
class SentTask:
    """A task that workers have.

    Attributes:
        task: what they are asked for.
        answer: batch and report, once they have arrived.
        awaited: somebody waits for the answer, and it may still come.
    """

    task: Task
    answer: tuple[Any, TaskReport] | None = None
    awaited: bool = True


class Pool:
    """The workers of one loader, and the tasks that they have.

    Args:
        source: what makes the batches in the workers; None is torch's own way.
        patience_s: how long to wait for workers that the script never asked for.
        setups: what each worker does before its first batch.

    Attributes:
        given: tasks of the current pass that were not taken yet.
        seen: what the workers saw of the loader, if they may stay.
    """

    def __init__(
        self,
        loader: Any,
        source: Any,
        *,
        worker_plan: WorkerPlan,
        patience_s: float,
        stays: bool,
        seen: DatasetSnapshot | None = None,
        setups: Sequence[Any] = (),
    ) -> None:
        self.count, self.logical_count = worker_plan.count, worker_plan.logical_count
        ahead_count = _ahead_count(loader, self.count)
        self.capacity = self.count * ahead_count
        self._kind = kind(source)  # not the source, which may hold the loader
        self.setups = tuple(setups)
        self.seen = seen
        self._stays = stays
        self.given: deque[SentTask] = deque()
        self._row: deque[SentTask] = deque()
        self._holder: weakref.ref[Any] | None = None
        if not self.logical_count:
            _allow_descriptors()
        site = WorkerDataset(loader, source, logical_count=self.logical_count, setups=setups)
        self.processes = WorkerProcesses(
            loader, site, count=self.count, ahead_count=ahead_count, patience_s=patience_s
        )

    # ---- who uses it

    def hold(self, holder: Any, *, realigned: bool = False) -> None:
        """Lend the workers to a pass; what an earlier one left behind is discarded.

        Args:
            holder: the pass.
            realigned: begin with the first worker, as torch does in each pass: streams that
                continue from pass to pass stay with their workers.
        """
        itself, owner = weakref.ref(self), (os.getpid(), get_ident())

        def break_off(gone: weakref.ref[Any], ends: Callable[[], bool] = sys.is_finalizing) -> None:
            pool = None if ends() else itself()
            if pool is not None and pool._holder is gone and (os.getpid(), get_ident()) == owner:
                pool._release()

        self._holder = weakref.ref(holder, break_off)
        self.processes.begin(realigned=realigned)
        self.discard()

    def release(self, holder: Any) -> None:
        """Take the workers back from a pass that has ended."""
        if self._holder is not None and self._holder() is holder:
            self._release()

    def _release(self) -> None:
        self._holder = None
        self.processes.end()
        if not self._stays:
            self.processes.close()

    def serves(self, worker_plan: WorkerPlan, source: Any, setups: Sequence[Any]) -> bool:
        """Return whether these workers are what is requested."""
        wanted = worker_plan.count, worker_plan.logical_count
        same_count = (self.count, self.logical_count) == wanted
        return same_count and self.setups == tuple(setups) and self._kind == kind(source)

    @property
    def free(self) -> bool:
        """Whether no living pass holds it."""
        return self._holder is None or self._holder() is None

    # ---- tasks

    @property
    def room(self) -> int:
        """How many tasks it can take now without waiting."""
        return self.capacity - len(self.given)

    def give(self, task: Task) -> None:
        """Give a task to the next worker."""
        sent = SentTask(task)
        self.given.append(sent)
        while len(self._row) >= self.capacity:
            self._receive()
        self.processes.put(task)
        self._row.append(sent)

    def take(self) -> tuple[Task, Any, TaskReport]:
        """Wait for the batch of the oldest task that was given; return task, batch and report.

        Raises:
            WorkersLost: the script never asked for them, and can do without.
            RuntimeError: a worker died, or the time-out passed (torch's own words).
        """
        # A wait that was interrupted may be resumed.
        while not self.given or (answer := self.given[0].answer) is None:
            self._receive()
        return self.given.popleft().task, *answer

    def _receive(self) -> None:
        """Wait for the next answer; keep it where its task is still wanted."""
        checked = any(sent.task.checked for sent in self._row)
        lost_count, batch, report = self.processes.next_answer(checked=checked)
        for _ in range(lost_count):
            lost = self._row.popleft()
            lost.awaited = False
            if lost in self.given:
                self.given.remove(lost)
        sent = self._row.popleft()
        if sent.awaited:
            sent.answer = opened(batch), report

    def discard(self) -> list[Task]:
        """Discard the answers to all tasks, whether they have arrived or not; return the tasks."""
        for sent in self.given:
            sent.awaited = False
        dropped = [sent.task for sent in self.given]
        self.given.clear()
        return dropped

    def peek(self) -> Any:
        """Return the batch of the oldest task that was given if it has arrived, else None."""
        while self.given and self.given[0].answer is None and self.processes.has_answer():
            self._receive()
        answer = self.given[0].answer if self.given else None
        return None if answer is None else answer[0]


def _ahead_count(loader: Any, count: int) -> int:
    """Return how many tasks each worker holds at most."""
    own = int(loader.num_workers)
    if not own:
        return _PREFETCH_COUNT
    return max(1, own * int(loader.prefetch_factor) // count)


def kind(source: Any) -> str:
    """Return the name of a source; torch's own way has none."""
    return "" if source is None else str(source.name)


def looks(loader: Any) -> DatasetSnapshot:
    """Return what workers that start now would see of a loader."""
    roots = loader.dataset, loader.collate_fn, loader.worker_init_fn
    return DatasetSnapshot(*roots, most_s=_LOOK_S, most_bytes=_LOOK_BYTES)


def _allow_descriptors() -> None:
    """Permit many open files: each tensor of a large batch from a worker takes one while it lives.

    A script without workers may keep thousands, as in a list of labels.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_COUNT if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_COUNT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
