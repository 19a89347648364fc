"""Whether a batch that another process made is the one that the script would have got."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasten.loader import random_states
from hasten.loader.batch_equality import difference
from hasten.loader.cache import file_access
from hasten.loader.loader_state import LOOP_DRAWS
from hasten.loader.sources.source import Stock, stock_of
from hasten.loader.workers import spot_check
from hasten.loader.workers.observed import Moves, observe
from hasten.loader.workers.stateful_fetch import doubtful
from hasten.loader.workers.streams import Streams
from hasten.loader.workers.tasks import Draws

if TYPE_CHECKING:
    from hasten.loader.epoch_iterator import EpochIterator
    from hasten.loader.workers.tasks import Task, TaskReport


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
        state.draws = True
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
    curious = epoch.state.draws is None and epoch.state.keeps and not epoch.astray
    if curious and not report.changed:
        _try_here(epoch, task, batch, report)
        epoch.state.learn_of_workers(epoch, drew=report.drew)
    epoch.resumes[task.number % epoch.loader.num_workers] = report.states


def _try_here(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> None:
    """Make a batch in this process, too, where the script's workers may be done without."""
    state, index = epoch.state, task.number % epoch.loader.num_workers
    if not state.may_go_without or index not in epoch.resumes:
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
        state.refuse_here("items made in the main process differ, or change something there")


def _raised(wrapped: Any) -> Exception:
    try:
        wrapped.reraise()
    except Exception as error:
        return error
    raise AssertionError("an exception from a worker must raise")


# ---- the script has none, and the items draw nothing


def _of_none(epoch: EpochIterator, task: Task, batch: Any, report: TaskReport) -> BatchCheck:
    number = epoch.state.trust.delivered()
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
        epoch.state.draws = True
        epoch.abandon([])
    elif why := _why_not_elsewhere(truth, moves, batch, report):
        epoch.abandon([])
        epoch.state.trust.tell_broken(why)
        epoch.give_up_workers(why)
    else:
        epoch.state.trust.found_equal()
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
        epoch.state.missed(LOOP_DRAWS, foretold=epoch.handed == now)
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
    epoch.state.trust.tell_broken(why)
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
