"""See the next batch of torch's own workers before the script asks for it."""

from __future__ import annotations

import weakref
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class EarlyAnswers:
    """Answers of workers, taken from their queue before torch's iterator waits for them.

    They are only held here. Torch's iterator gets them where it would read the queue, in the same
    order, and does with each what it always does: it asks the sampler for the next indices, puts
    batches in order, raises what a worker raised.

    Args:
        iterator: torch's own, with workers. It holds this object, which must not hold it in turn.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)
        self._held: deque[Any] = deque()
        self._lock = Lock()
        self._is_read = False
        iterator._get_data = self._get_data

    def _get_data(self) -> Any:
        """Return the next answer as torch's method of this name: the held ones come first."""
        with self._lock:
            if self._held:
                answer = self._held.popleft()
                if isinstance(answer, Exception):
                    raise answer
                return answer
            self._is_read = True
        try:
            iterator: Any = self._iterator()
            return type(iterator)._get_data(iterator)
        finally:
            self._is_read = False

    def peek(self) -> Any:
        """Return what comes next if it is here already, else None; it stays the next one.

        It may be a batch, an exception of a worker in torch's wrapping, or the end of its samples.
        """
        iterator = self._iterator()
        if iterator is None or iterator._shutdown or not getattr(iterator, "_in_order", True):
            return None
        with self._lock:  # another thread may have begun to ask for batches
            number = iterator._rcvd_idx
            if self._is_read or number not in iterator._task_info:
                return None
            while (found := self._find(iterator, number)) is None and self._take(iterator):
                pass
        return found

    def _find(self, iterator: Any, number: int) -> Any:
        known = iterator._task_info.get(number, ())  # another thread may just have got it
        if len(known) == 2:  # its worker, and what came before its turn
            return known[1]
        answers = (each for each in self._held if not isinstance(each, Exception))
        return next((data for index, data in answers if index == number), None)

    def _take(self, iterator: Any) -> bool:
        """Take an answer that has arrived from the queue; return whether there was one."""
        if iterator._data_queue.empty():
            return False
        try:
            has_come, answer = iterator._try_get_data(timeout=0)
        except Exception as error:  # for the script, where it asks for the batch
            has_come, answer = True, error
        if has_come:
            self._held.append(answer)
        return bool(has_come)


class NextBatches:
    """The next batch of each pass that goes on, where it is here before the script asks for it."""

    def __init__(self, loader_of: Callable[[Any], Any]) -> None:
        self._loader_of = loader_of
        self._peeks: WeakKeyDictionary[Any, weakref.WeakMethod[Any]] = WeakKeyDictionary()
        self._going: WeakSet[Any] = WeakSet()

    def know(self, iterator: Any, peek: Callable[[], Any]) -> None:
        """Let the method `peek` show the next batch of an iterator.

        Its object may hold the loader, which may hold the iterator: if it were held here, this
        entry would never go.
        """
        self._peeks[iterator] = weakref.WeakMethod(peek)

    def asked(self, iterator: Any) -> None:
        """Note that the script asks for a batch."""
        self._going.discard(iterator)

    def given(self, iterator: Any) -> None:
        """Note that the script has got one, and may ask for the next."""
        self._going.add(iterator)

    def coming(self, wanted: Callable[[Any], bool]) -> Iterator[tuple[Any, Any]]:
        """Yield loaders, each with its next batch if that is here already, once for each batch.

        The batch is the object that the script will probably get when it asks for it. Until then
        nothing happens that the script could see.
        """
        from torch.utils.data import dataloader

        workers_kind = dataloader._MultiProcessingDataLoaderIter
        for iterator in list(self._going):
            loader = self._loader_of(iterator)
            if loader is None or not wanted(loader):
                continue
            if iterator not in self._peeks and type(iterator) is workers_kind:
                self.know(iterator, EarlyAnswers(iterator).peek)
            peek = self._peeks[iterator]() if iterator in self._peeks else None
            batch = None if peek is None else peek()
            if batch is not None:
                self._going.discard(iterator)
                yield loader, batch
