"""Stand between the script's iterators and whoever fetches for them."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hasten.loader.epoch_iterator import EpochIterator
from hasten.loader.indices import begin_stream, fresh_seed, kept_draws, rest_of
from hasten.loader.loader_state import LoaderState
from hasten.loader.notices import Notices, said
from hasten.loader.proofs import Proofs, permit_of
from hasten.loader.view import Unknown, make_front, steerable
from hasten.loader.worker_plan import WorkerRequest, stay
from hasten.loader.workers.early_answers import NextBatches
from hasten.loader.workers.pools import IdlePools

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.loader.cache_warmup import CacheWarmups
    from hasten.loader.sources.source import Source

    Offer = Callable[[Any], Source | str]
    Undo = Callable[[], None]


class Stayed:
    """Takes the place of `loader._iterator`, where torch keeps persistent workers.

    Trainers remove it to end those workers. It is not the iterator of the script's pass: that
    one holds the loader, so the workers could not end with it. It is referenced weakly: while
    it lives, torch would begin each new pass with it.
    """

    def __init__(self) -> None:
        self._last: tuple[weakref.ref[Any], weakref.ref[EpochIterator]] | None = None
        self._workers: list[Any] = []

    def hold(self, front: Any, epoch: EpochIterator) -> None:
        """Note the iterator of the script's pass."""
        self._last = weakref.ref(front), weakref.ref(epoch)
        self._workers = front._workers

    def rewound(self) -> Any:
        """Return the iterator, with its pass ended, if it is still alive, else None."""
        if self._last is None:
            return None
        front, epoch = self._last[0](), self._last[1]()
        if front is not None and epoch is not None:
            epoch.leave()
            front._num_yielded = 0
        return front

    def _shutdown_workers(self) -> None:
        """Do nothing: the workers end once this object is removed, or with the loader."""


class LoaderEngine:
    """What the levers want for a script's loaders, and what has been done about it.

    The script's `for` loop holds an iterator of torch's own class. Where a lever wants
    something, an `EpochIterator` answers its `_next_data`. In the middle of a pass, torch's
    own iterator is first cut off from its indices and gives what it had already requested.

    Args:
        warmups: in a trial, show at once what pays off only from the second pass on.
        clock: the loop's seconds, not counting those in which a trial was parked.
        granted: the user vouches for what cannot be proven about a dataset.

    Attributes:
        request: the number of workers that a lever asks for.
        offers: what may propose a source for a loader.
        setups: what each worker process does at its start.
        version: grows with every change to the three above.
        notices: what is not done for a loader, and why.
        proofs: what is proven about each loader.
        next_batches: those that are here before the script asks for them.
    """

    def __init__(
        self,
        *,
        warmups: CacheWarmups | None = None,
        clock: Callable[[], float] = time.monotonic,
        granted: bool = False,
    ) -> None:
        self.warmups = warmups
        self._granted = granted
        self.proofs = Proofs()
        self.notices = Notices()
        self._clock = clock
        self.request = WorkerRequest()
        self.offers: list[Offer] = []
        self.setups: list[Any] = []
        self.version = 0
        self._idle = IdlePools()
        self._after: list[Callable[[Any, Any], Any]] = []
        self._states_by_loader: WeakKeyDictionary[Any, LoaderState] = WeakKeyDictionary()
        self._fronts: WeakKeyDictionary[Any, weakref.ref[Any]] = WeakKeyDictionary()
        self.next_batches = NextBatches(self._loader_of)

    # ---- what levers ask for

    def want(self, count: int | None, *, redraws: bool = False) -> Undo:
        """Ask for `count` workers; None, or calling the result, restores the script's own number.

        Args:
            count: worker processes.
            redraws: they may draw random numbers of their own where the script's items draw.
        """
        self.request = WorkerRequest(count, redraws)
        self._changed()

        def undo() -> None:
            self.want(None)

        return undo

    def add(self, offer: Offer) -> Undo:
        """Let `offer(loader)` propose a source for each loader, until the result is called.

        `offer` returns a `Source`, or one sentence on why it has none for this loader.
        """
        return self._with(self.offers, offer)

    def in_workers(self, setup: Any) -> Undo:
        """Let `setup` act in each worker process.

        It has `enter(worker_index)` for its start and `first(fetch, indices, dataset, collate_fn)`,
        which makes each batch. It is sent to the workers: if the script starts them by spawn, it
        must be picklable.
        """
        return self._with(self.setups, setup)

    def on_batch(self, after: Callable[[Any, Any], Any]) -> Undo:
        """Pass each batch through `after(loader, batch)` before the script gets it."""
        self._after.append(after)
        return lambda: self._after.remove(after)

    def _with(self, wanted: list[Any], item: Any) -> Undo:
        wanted.append(item)
        self._changed()

        def undo() -> None:
            wanted.remove(item)
            self._changed()

        return undo

    def _changed(self) -> None:
        self.version += 1
        for front, loader_of in list(self._fronts.items()):
            loader = loader_of()
            if "_next_data" in front.__dict__ or loader is None:
                continue
            if self._permitted(self._state(loader), loader):
                self._take_over(front, loader)

    def _state(self, loader: Any) -> LoaderState:
        state = self._states_by_loader.get(loader)
        if state is None:
            state = LoaderState(self.notices, self._clock, self._idle)
            self._states_by_loader[loader] = state
        return state

    # ---- what the script does

    def make(self, loader: Any, stock: Callable[[], Any]) -> Any:
        """Return the iterator of a new pass."""
        if not steerable(loader):
            return stock()
        state = self._state(loader)
        # torch draws no base seed where the loader's own workers stayed from pass to pass.
        stays = stay(loader)
        if stays and state.kept_seed is not None and loader._iterator is None:
            state.start_over()  # the script has let its workers go: torch would start new ones
        if state.is_astray and state.kept_seed is None:
            state.pools.drop()
            return stock()
        if state.kept_seed is None and not self._permitted(state, loader):
            front = stock()
            if hasattr(front, "_sampler_iter"):
                front.__dict__.pop("_next_data", None)
                self._follow(front, loader)
            return front
        resumed = stays and (state.kept_seed is not None or loader._iterator is not None)
        restore = kept_draws(loader)
        try:
            return self._begin(state, loader, resumed=resumed)
        except Unknown as error:
            restore()
            self.notices.note(f"a loader was left alone: {said(error.__cause__ or error)}")
            if isinstance(loader._iterator, Stayed):
                loader._iterator = None
            return stock()

    def _permitted(self, state: LoaderState, loader: Any) -> bool:
        """Return whether anything is requested, and what is proven about a loader permits it."""
        import torch

        if not (self._granted or self.proofs.repay(loader)):
            return False
        if self.warmups is not None:
            self.proofs.look(loader)
        if self.request.count is None and not self.offers and not self.setups:
            return False  # nothing is asked for
        if torch.is_autocast_enabled(
            "cpu"
        ):  # items compute different bits than in passes without it
            self.notices.refuse(
                "autocast is on where a pass begins: its batches are made by torch alone"
            )
            return False
        if not self._granted:
            state.items.permit = permit_of(self.proofs.of(loader))
        is_run = self.warmups is None  # in a trial levers come and go
        if is_run and _torch_stays(state, loader) and state.items.permit.draws is not False:
            return False  # the random streams of its workers go on
        missing = state.items.permit.missing
        if missing and (loader.num_workers or self.setups or self.request.count is not None):
            self.notices.refuse(missing)  # sources that need no proof may still serve it
        return state.items.permit.allows(loader, self.request, self.offers, self.setups)

    def _follow(self, front: Any, loader: Any) -> None:
        """Remember the loader of torch's own iterator, by which its pass may be taken over."""
        self._fronts[front] = weakref.ref(loader)
        if not stay(loader):  # else the loader holds the iterator
            front._hasten_loader = loader  # it may have no other name than this pass

    def _begin(self, state: LoaderState, loader: Any, *, resumed: bool) -> Any:
        """Return an iterator whose batches come from an `EpochIterator`."""
        torch_stays = _torch_stays(state, loader) and self.warmups is None
        if resumed and state.kept_seed is None:
            state.kept_seed = fresh_seed()
        stayed = loader._iterator if isinstance(loader._iterator, Stayed) else Stayed()
        front = stayed.rewound()
        if front is None:
            front = make_front(loader)
        stream = begin_stream(
            loader, kept_seed=state.kept_seed if resumed else None, fast=bool(self.offers)
        )
        front._index_sampler, front._sampler_iter = stream, iter(stream)
        epoch = EpochIterator(self, state, loader, stream, _pins(front))
        epoch.begin()
        if loader.num_workers:  # what scripts use of torch's iterators with workers
            pool = epoch.fetchers.pool
            front._workers = [] if pool is None else pool.processes.workers
            front._shutdown_workers = epoch.leave
        if stay(loader):
            state.kept_seed = stream.seed
            stayed.hold(front, epoch)
            if torch_stays:
                loader._iterator._shutdown_workers()
            if torch_stays or loader._iterator is None:
                loader._iterator = stayed
        front._next_data = epoch.next
        self.next_batches.know(front, epoch.peek)
        self._fronts[front] = weakref.ref(loader)
        return front

    def _take_over(self, front: Any, loader: Any) -> None:
        """Take over the rest of a pass that torch's own iterator began."""
        state = self._state(loader)
        stream = rest_of(loader, front._sampler_iter)
        rest = EpochIterator(self, state, loader, stream, _pins(front))
        front._sampler_iter = iter(())
        itself = weakref.ref(front)  # nothing that the iterator holds may hold the iterator
        drained = False

        def next_data() -> Any:
            nonlocal drained
            if not drained:
                try:
                    asking: Any = itself()
                    batch = type(asking)._next_data(asking)
                except StopIteration:
                    drained = True
                else:
                    stream.delivered()
                    return batch
            return rest.next()

        front._next_data = next_data

    def advance(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Return the next batch of the script's `iterator`."""
        if self._after:
            self.next_batches.asked(iterator)
        if "_next_data" in iterator.__dict__ and not _profiled():
            batch = iterator._next_data()  # torch would open a profiler record for nobody
            iterator._num_yielded += 1
        else:
            began_s = time.monotonic()
            batch = original(iterator)
            if (loader := self._loader_of(iterator)) is not None:
                self.proofs.waited(loader, time.monotonic() - began_s)
        if self._after:
            loader = self._loader_of(iterator)
            for after in self._after:
                batch = after(loader, batch)
            self.next_batches.given(iterator)
        return batch

    def _loader_of(self, iterator: Any) -> Any:
        """Return the loader of a pass, or None if it is unknown or gone."""
        loader_of = self._fronts.get(iterator)
        return None if loader_of is None else loader_of()


def _profiled() -> bool:
    from torch.autograd import profiler

    return bool(getattr(profiler, "_is_profiler_enabled", True))


def _torch_stays(state: LoaderState, loader: Any) -> bool:
    """Return whether torch's own workers stayed from earlier passes."""
    own = loader._iterator if state.kept_seed is None and stay(loader) else None
    return own is not None and not isinstance(own, Stayed)


def _pins(front: Any) -> Callable[[Any], Any]:
    """Return what torch's own iterator does with a batch that this process made."""
    if not front._pin_memory:
        return lambda batch: batch
    from torch.utils.data._utils import pin_memory

    device: Any = front._pin_memory_device
    copy: Any = pin_memory.pin_memory
    return lambda batch: copy(batch, device)
