"""What a worker process is given, and what it answers: a batch, and how it was made."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from enum import Enum
from functools import partial
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.loader import random_states
from hasten.loader.batch_equality import difference
from hasten.loader.cache import file_access
from hasten.loader.fingerprint import fingerprint
from hasten.loader.sources.source import Stock
from hasten.loader.workers.inline_batch import as_pickled, posted
from hasten.loader.workers.stateful_fetch import tells_apart
from hasten.loader.workers.worker_info import collate_in_worker, say_worker

if TYPE_CHECKING:
    from collections.abc import Sequence


_FEW_COUNT = 4
_BEFORE_QUEUES = -4  # those are joined at -5, by which multiprocessing waits for what is unread


class Draws(Enum):
    """Whose random numbers the items of a batch draw."""

    NONE = "none"
    """Nobody's: a batch that draws nevertheless is not delivered."""
    STREAM = "stream"
    """Those of one of the script's own workers, replayed."""
    CHAIN = "chain"
    """Those of the main process, handed over from batch to batch."""


class Task(NamedTuple):
    """One batch to fetch.

    Attributes:
        number: of the batch in its pass, from 0.
        indices: of its samples.
        draws: where its random numbers come from.
        pass_key: sets one pass apart from another, as streams restart with each.
        seed: the base seed of the pass.
        states: of the generators before the batch, None to continue from the previous batch.
        hands_over: answer with the states of the generators after it.
        checked: fetch it twice and compare.
        looked: look at all of the dataset and collate function afterwards.
        probed: see in a fork whether items remember that they were fetched.
    """

    number: int
    indices: Any
    draws: Draws
    pass_key: int
    seed: int
    states: random_states.States | None = None
    hands_over: bool = False
    checked: bool = False
    looked: bool = False
    probed: bool = False


class TaskReport(NamedTuple):
    """How a batch was made.

    Attributes:
        fetch_ns: nanoseconds that it took.
        drew: whether a generator advanced.
        changed: what dataset or collate function hold has changed, or a generator of theirs.
        states: of the generators after the batch, where its draws are handed over.
        unequal: how two fetches of it differ.
        error: what fetching it raised, as torch wraps it.
        stamps: of the files that were read for it; None if they are unknown.
    """

    fetch_ns: int
    drew: bool = False
    changed: bool = False
    states: Any = None
    unequal: str = ""
    error: Any = None
    stamps: Any = ()


def as_it_is(batch: Any) -> Any:
    """Collate nothing: the batch is finished."""
    return batch


def _end_unless_read(parent: int) -> None:
    """End a worker whose parent is gone: what it still sends would wait for ever for a reader."""
    if os.getppid() != parent:
        os._exit(1)


class WorkerDataset:
    """Takes the dataset's place in torch's workers, and answers tasks instead of indices.

    Args:
        loader: the script's loader; what fetching needs of it is kept, not the loader itself.
        logical_count: how many workers the script has: each is a stream of random numbers.
        setups: objects with `enter(worker_index)` and `first(fetch, indices, dataset,
            collate_fn)`.
    """

    def __init__(
        self, loader: Any, source: Any, *, logical_count: int, setups: Sequence[Any] = ()
    ) -> None:
        self.dataset = loader.dataset
        self._own_init = loader.worker_init_fn
        self._own_collate = loader.collate_fn
        self._collate = collate_in_worker(loader)
        self._source = source or Stock(loader, collate_fn=self._collate)
        self._pins = loader.pin_memory  # by torch's thread, which knows tensors only
        self._logical_count = logical_count
        self._setups = tuple(setups)
        self._streams: dict[int, random_states.States] = {}
        self._key: Any = None
        self._current: int | None = None
        self._private: random_states.Private | None = None
        self._sent = False
        self._seen: dict[bool, Any] = {}
        self._set_up = False

    def start(self, worker_index: int) -> None:
        """Begin in a new worker process; torch calls this before the first task."""
        Finalize(None, _end_unless_read, args=(os.getppid(),), exitpriority=_BEFORE_QUEUES)
        for setup in self._setups:
            setup.enter(worker_index)
        if not self._logical_count:
            say_worker(None)
        faster: Any = getattr(self._source, "source", None)
        if hasattr(faster, "collate_fn"):
            faster.collate_fn = self._collate

    def __getitem__(self, task: Task) -> tuple[Any, TaskReport]:
        """Fetch the batch of a task; torch asks this way without automatic batching."""
        index = task.number % self._logical_count if self._logical_count else 0
        try:
            if self._logical_count:
                self._enter(task, index)
            if task.draws is Draws.STREAM:
                batch, report = self._plain(task)
            else:
                batch, report = self._observed(task, index)
            if (task.checked or not self._sent) and not self._logical_count:
                pickle.dumps(batch)  # if the queue cannot, nobody is told
                self._sent = True
            if self._logical_count:
                batch = as_pickled(batch)
            return (batch if self._pins else posted(batch)), report
        except Exception as error:
            return None, TaskReport(fetch_ns=0, error=wrapped(error, index))

    __getitems__ = __getitem__

    def _plain(self, task: Task) -> tuple[Any, TaskReport]:
        """Fetch with the draws of one of the script's workers, whatever they are."""
        before = random_states.marks() if task.hands_over else None
        start_ns = time.perf_counter_ns()
        batch = self._fetch(task.indices)
        took_ns = time.perf_counter_ns() - start_ns
        drew = before is not None and before != random_states.marks()
        after = random_states.read() if task.hands_over else None
        changed = self._changed(brief=not task.looked)
        if task.probed:
            changed = tells_apart(lambda: self._fetch(task.indices)) or changed
        return batch, TaskReport(took_ns, drew=drew, changed=changed, states=after)

    def _observed(self, task: Task, index: int) -> tuple[Any, TaskReport]:
        """Fetch what should draw nothing, or what the main process would have drawn."""
        if task.states is not None:
            random_states.restore(task.states)
        if self._private is None:
            self._private = random_states.Private(self.dataset, self._source)
            self._remember()
        before, hidden = random_states.marks(), self._private.read()
        start = random_states.read() if task.checked else None
        start_ns, opened = time.perf_counter_ns(), file_access.record()
        try:
            batch = self._fetch(task.indices)
        finally:
            file_access.stop()
        took_ns = time.perf_counter_ns() - start_ns
        files = None if opened.unsettled else tuple(opened.stamps.values())
        drew = before != random_states.marks()
        after = random_states.read() if task.hands_over else None
        unequal = "" if start is None else self._twice(task, batch, start)
        if drew and task.draws is Draws.NONE:  # the stream of a worker stands at its start again
            self._streams.pop(index, None)
            self._current = None
        moved = hidden != self._private.read()
        changed = self._changed(brief=not task.looked) or moved
        return batch, TaskReport(took_ns, drew, changed, after, unequal, stamps=files)

    def _twice(self, task: Task, batch: Any, before: random_states.States) -> str:
        """Return how a second fetch differs from the first.

        Where the script has no workers, the main process compares the whole batch: here two of
        its samples suffice to find anything that advances from fetch to fetch.
        """
        after, indices = random_states.read(), task.indices
        if not self._logical_count and type(indices) is list and len(indices) > _FEW_COUNT:
            few = [indices[0], indices[-1]]
            random_states.restore(before)
            # The script's collate function may ask for more than any two.
            with contextlib.suppress(Exception):
                batch, indices = self._fetch(few), few
        random_states.restore(before)
        found = difference(batch, self._fetch(indices))
        random_states.restore(after)
        return found

    def _fetch(self, indices: Any) -> Any:
        fetch = self._source.fetch
        for setup in self._setups:
            fetch = partial(setup.first, fetch, dataset=self.dataset, collate_fn=self._own_collate)
        return fetch(indices)

    def _changed(self, *, brief: bool) -> bool:
        """Return whether dataset or collate function look different from at the last call."""
        seen, before = self._looks(brief=brief), self._seen[brief]
        self._seen[brief] = seen
        set_up, self._set_up = self._set_up, False
        return set_up or (before is not None and seen != before)

    def _looks(self, *, brief: bool) -> Any:
        return [fingerprint(one, brief=brief) for one in (self.dataset, self._own_collate)]

    def _remember(self) -> None:
        self._seen = {brief: self._looks(brief=brief) for brief in (True, False)}

    # ---- the streams of the script's own workers

    def _enter(self, task: Task, index: int) -> None:
        """Become worker `index` of the script, with its random numbers."""
        if self._key != (task.pass_key, task.seed):
            self._key = (task.pass_key, task.seed)
            self._streams, self._current, self._seen = {}, None, {}
        if self._current == index and task.states is None:
            return
        if self._current is not None:
            self._streams[self._current] = random_states.read()
        self._current = index
        say_worker((index, self._logical_count, task.seed + index, self.dataset))
        if index in self._streams:
            random_states.restore(self._streams[index])
        else:
            random_states.seed_as_worker(task.seed, index)
            if self._own_init is not None:
                before = self._looks(brief=False)
                self._own_init(index)
                # A torch worker sets up a fresh copy in each pass; one that stays, the same copy.
                self._set_up |= before != self._looks(brief=False)
        if task.states is not None:
            random_states.restore(task.states)
        if not self._seen:
            self._remember()


def wrapped(error: Exception, index: int) -> Any:
    """Wrap an exception as worker `index` of torch does, without our own frames at its start."""
    from torch._utils import ExceptionWrapper

    trace = error.__traceback__
    own = os.path.dirname(os.path.dirname(__file__))  # the loader, not only its workers
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(own) and trace.tb_next:
        trace = trace.tb_next
    wrapper: Any = ExceptionWrapper
    return wrapper(
        exc_info=(type(error), error, trace), where=f"in DataLoader worker process {index}"
    )
