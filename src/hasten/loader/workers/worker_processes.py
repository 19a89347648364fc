"""Torch's own worker processes, answering tasks in the order in which they are put."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections import deque
from itertools import cycle
from multiprocessing.util import get_temp_dir
from typing import TYPE_CHECKING, Any

from hasten.loader.notices import said
from hasten.loader.quiet_forks import quiet_forks
from hasten.loader.random_states import as_read
from hasten.loader.view import make_worker_iterator
from hasten.loader.workers.early_answers import EarlyAnswers
from hasten.loader.workers.tasks import as_it_is

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.loader.workers.tasks import Task, TaskReport, WorkerDataset

_LOOK_S = 0.5
_CHECKS_S = 10.0
_CHECKS_RATIO = 3.0
_STOPPED_RATIO = 2.0


class WorkersLost(Exception):
    """Workers that the script never asked for died, or hang."""


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

    If the script has workers itself, deaths and time-outs are handled as torch does. Torch
    raises when a worker dies, whatever the main process is doing then. So torch knows about
    workers that the script never asked for only while somebody waits for them.

    Args:
        site: what takes the dataset's place in the workers.
        ahead_count: tasks that each worker holds at most.
        patience_s: how long to wait for a batch of workers that the script never asked for.
    """

    def __init__(
        self, loader: Any, site: WorkerDataset, *, count: int, ahead_count: int, patience_s: float
    ) -> None:
        self._count = count
        self._are_added = not loader.num_workers
        self._timeout_s, self._patience_s = loader.timeout, patience_s
        self._feed = _Feed()
        get_temp_dir()  # removed with this process; workers that die with it make none
        overrides: dict[str, Any] = {"timeout": loader.timeout}
        if self._are_added:  # a fork does not run the script's file again
            fork = multiprocessing.get_context("fork")
            overrides = {"timeout": _LOOK_S, "multiprocessing_context": fork}
        with quiet_forks() if self._are_added else contextlib.nullcontext():
            self._torchs = make_worker_iterator(
                loader,
                count,
                dataset=site,
                collate_fn=as_it_is,
                worker_init_fn=site.start,
                prefetch_factor=ahead_count,
                _index_sampler=self._feed,
                **overrides,
            )
        self._early: EarlyAnswers | None = None
        self._received_count = 0

    def begin(self, *, realigned: bool) -> None:
        """Begin a pass; `realigned` with the first worker, as torch does."""
        if self._are_added:
            _stop_watching(self._torchs)
        else:
            _watch(self._torchs)
        if realigned:
            self._torchs._worker_queue_idx_cycle = cycle(range(self._count))

    def end(self) -> None:
        """End a pass: workers that stay die when the process ends, and that is no error."""
        _stop_watching(self._torchs)

    @property
    def workers(self) -> list[Any]:
        """The processes."""
        return list(self._torchs._workers)

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
            checked: batches are made more than once, which the script's time-out does not expect.

        Raises:
            WorkersLost: the script never asked for them, and can do without.
            RuntimeError: a worker died, or the time-out passed (torch's own words).
        """
        batch, report = self._wait_for_added() if self._are_added else self._wait(checked=checked)
        lost_count = self._torchs._rcvd_idx - 1 - self._received_count
        self._received_count = self._torchs._rcvd_idx
        if self._torchs._pin_memory:  # torch's pinning turns tuples into lists
            report = report._replace(states=as_read(report.states), stamps=as_read(report.stamps))
        return lost_count, batch, report

    def _wait(self, *, checked: bool) -> Any:
        more_s = _CHECKS_S + (_CHECKS_RATIO - 1) * self._timeout_s if checked else 0.0
        return _patient(self._torchs, more_s)

    def _wait_for_added(self) -> Any:
        try:
            _watch(self._torchs)
            return _patient(self._torchs, self._patience_s)
        except Exception as error:
            if _timed_out(error):
                raise WorkersLost(f"none gave a batch for {self._patience_s:.0f} s") from error
            raise WorkersLost(said(error)) from error
        finally:
            _stop_watching(self._torchs)

    def close(self, *, lost: bool = False) -> None:
        """End the workers, and wait for them; those that are lost may hang."""
        for worker in self._torchs._workers if lost else ():
            if worker._parent_pid == os.getpid():  # else this is a copy of who started them
                worker.kill()
        self._torchs._shutdown_workers()


def _patient(iterator: Any, patience_s: float) -> Any:
    """Wait for the next answer; keep waiting if the time-out passes before `patience_s`."""
    waited_s = 0.0
    while True:
        began_s = time.monotonic()
        try:
            return iterator._next_data()
        except RuntimeError as error:
            # All processes may have been stopped meanwhile, as by Ctrl-Z, and did not wait then.
            waited_s += min(time.monotonic() - began_s, _STOPPED_RATIO * iterator._timeout)
            if not _timed_out(error) or waited_s >= patience_s:
                raise


def _timed_out(error: Exception) -> bool:
    return str(error).startswith("DataLoader timed out")


def _watch(iterator: Any) -> None:
    """Let torch raise if one of these workers dies; raise at once if one already has."""
    from torch.utils.data._utils import signal_handling

    signals: Any = signal_handling
    _stop_watching(iterator)
    iterator._worker_pids_set = True
    signals._set_worker_pids(id(iterator), tuple(worker.pid for worker in iterator._workers))
    signals._error_if_any_worker_fails()


def _stop_watching(iterator: Any) -> None:
    from torch.utils.data._utils import signal_handling

    signals: Any = signal_handling
    with contextlib.suppress(ValueError):  # they are not watched
        signals._remove_worker_pids(id(iterator))
    iterator._worker_pids_set = False
