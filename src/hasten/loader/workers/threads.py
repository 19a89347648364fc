"""Threads inside loader workers: limited if whole batches keep their bits.

torch limits its own threads in a worker. BLAS, OpenMP and OpenCV keep one thread per core, so
k workers on c cores run k * c threads that compete for the cores.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from hasten.loader import random_states
from hasten.loader.batch_equality import difference
from hasten.loader.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_FUNCTIONS = (  # which libraries, how their thread count is read, how it is set
    *(
        (
            r"openblas",
            f"{before}openblas_get_num_threads{after}",
            f"{before}openblas_set_num_threads{after}",
        )
        for before, after in product(("", "scipy_"), ("", "64_", "_64"))
    ),
    (r"libmkl_rt", "MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
    (r"lib[gi]?omp", "omp_get_max_threads", "omp_set_num_threads"),
)
_PATTERN = re.compile("|".join(dict.fromkeys(pattern for pattern, *_ in _FUNCTIONS)))
_CHECKED_EVERY = 256  # batches, after the first that was equal
_PATIENCE_COUNT = 8  # batches that may change the dataset, by opening files or filling caches
_DEEPEST, _MOST_MEMBERS = 3, 64


class _ThreadCount(NamedTuple):
    """The thread count of one library."""

    read: Callable[[], int]
    put: Callable[[int], Any]


def _loaded() -> Iterator[tuple[str, ctypes.CDLL]]:
    """Yield name and handle of each BLAS and OpenMP library in this process; load none."""
    maps = Path("/proc/self/maps").read_text(errors="replace")
    for path in sorted(set(re.findall(r"/.*\.so.*", maps))):
        if _PATTERN.search(os.path.basename(path)):
            with suppress(OSError):
                library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
                yield os.path.basename(path), library


def _settings() -> Iterator[_ThreadCount]:
    for name, library in _loaded():
        for pattern, read, put in _FUNCTIONS:
            if re.search(pattern, name) and hasattr(library, read) and hasattr(library, put):
                yield _ThreadCount(getattr(library, read), getattr(library, put))
                break
    opencv = sys.modules.get("cv2")
    if opencv is not None and hasattr(opencv, "setNumThreads"):
        yield _ThreadCount(opencv.getNumThreads, opencv.setNumThreads)


def limit(count: int) -> Callable[[], None]:
    """Let no loaded BLAS, OpenMP or OpenCV use more than `count` threads; return the undo.

    torch keeps its own count: it shares its OpenMP with others, and a script may have
    set that count itself.
    """
    import torch

    torch_count = torch.get_num_threads()
    before = [(each, each.read()) for each in _settings()]
    for each, own in before:
        if own > count:
            each.put(count)

    def undo() -> None:
        for each, own in before:
            if own > count:
                each.put(own)

    if torch.get_num_threads() != torch_count:
        torch.set_num_threads(torch_count)
    return undo


def openmp_mask() -> frozenset[int]:
    """Return the processors that OpenMP found at its start; empty if it pins no threads.

    Under `OMP_PROC_BIND` it pins the main thread to one processor, and workers inherit that.
    Its places still list all the processors that the process was given.
    """
    found: set[int] = set()
    for _, library in _loaded():
        if hasattr(library, "omp_get_place_proc_ids"):
            for place in range(library.omp_get_num_places()):
                processors = (ctypes.c_int * library.omp_get_place_num_procs(place))()
                library.omp_get_place_proc_ids(place, processors)
                found.update(processors)
    return frozenset(found)


def repair_affinity(mask: frozenset[int]) -> Callable[[], None]:
    """Let this thread run on all of `mask` if it was pinned to a part of it."""
    own = os.sched_getaffinity(0)
    if not own < mask:
        return lambda: None
    try:
        os.sched_setaffinity(0, mask)
    except OSError:  # a container may have taken processors away since
        return lambda: None
    return lambda: os.sched_setaffinity(0, own)


def _goes_on(value: Any, depth: int = 0) -> bool:
    """Return whether a dataset holds what advances when read: open files, iterators."""
    if hasattr(type(value), "__next__"):
        return True
    if depth == _DEEPEST or isinstance(value, (type, ModuleType)):
        return False
    parts = value if isinstance(value, (list, tuple)) else ()
    named = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return any(_goes_on(part, depth + 1) for part in [*parts[:_MOST_MEMBERS], *named.values()])


class WorkerThreads:
    """The thread limit of one loader worker, kept if batches are bit-equal under it.

    A batch that is checked is fetched twice: as the script would, which is what it gets, and
    under the limit, from the same random states. That is done only if the first of the two
    left the dataset unchanged and drew from none of its own generators.

    Args:
        count: threads per library.
        mask: processors that the worker may use even if it inherited fewer.
    """

    def __init__(self, count: int, mask: frozenset[int] = frozenset()) -> None:
        self.count = count
        self.mask = mask
        self.refused = ""
        self._batch_count = 0
        self._lift: list[Callable[[], None]] = []

    def enter(self, worker_index: int) -> None:
        """Prepare a worker before anything of the script's runs in it.

        The thread pool of `tokenizers` reads its size once, at first use; what it returns are
        integers in the order of its input.
        """
        if "tokenizers" in sys.modules:
            os.environ.setdefault("RAYON_NUM_THREADS", str(self.count))

    def first(
        self,
        fetch: Callable[[Sequence[int]], Any],
        indices: Sequence[int],
        dataset: Any,
        collate_fn: Any = None,
    ) -> Any:
        """Return the batch of `indices`; check the limit with it if a check is due.

        Checks are due at the first batches until one succeeds, then at every 256th, so this may
        replace `fetch` at every batch.
        """
        due = not self._lift or self._batch_count % _CHECKED_EVERY == 0
        self._batch_count += 1
        if self.refused or not due:
            return fetch(indices)
        return self._checked(fetch, indices, (dataset, collate_fn))

    def lift(self) -> None:
        """Restore the libraries and the mask."""
        while self._lift:
            self._lift.pop()()

    def _checked(
        self, fetch: Callable[[Sequence[int]], Any], indices: Sequence[int], roots: tuple[Any, Any]
    ) -> Any:
        self.lift()
        if any(map(_goes_on, roots)):
            self.refused = "fetching a batch twice may not be the same as once"
            return fetch(indices)
        start, before = random_states.read(), _looks(*roots)
        batch = fetch(indices)
        end = random_states.read()
        if before == _looks(*roots) and not _goes_on(roots[0]):
            try:
                self.refused = self._differs(fetch, indices, batch, start, end)
            finally:
                random_states.restore(end)
        elif self._batch_count >= _PATIENCE_COUNT:
            self.refused = "the dataset changes itself with every batch"
        return batch

    def _differs(
        self,
        fetch: Callable[[Sequence[int]], Any],
        indices: Sequence[int],
        batch: Any,
        start: random_states.States,
        end: random_states.States,
    ) -> str:
        """Fetch again under the limit, keep it if nothing differs, and say what does."""
        random_states.restore(start)
        self._lift = [repair_affinity(self.mask), limit(self.count)]
        found = "it was interrupted under the limit"
        try:
            found = difference(fetch(indices), batch)
            if not found and random_states.read() != end:
                found = "the random states after the batch"
        except Exception as error:
            found = f"the limit made it raise {type(error).__name__}"
        finally:
            if found:
                self.lift()
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for a spawned worker as if new: what was set belongs to this process."""
        return dict(vars(WorkerThreads(self.count, self.mask)))


def _looks(*roots: Any) -> Any:
    return [fingerprint(root) for root in roots], random_states.Private(*roots).read()
