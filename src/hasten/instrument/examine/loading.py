"""Who makes the batches, what they are busy with meanwhile, and what a worker costs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from hasten.instrument import processes
from hasten.instrument.repeats import merge

if TYPE_CHECKING:
    from hasten.instrument.watch import Watch

_LEAST_COUNT = 8
_PLACE_COUNT = 3


class Loading:
    """Look at the making of batches in this process and in forked workers."""

    def __init__(self, watch: Watch) -> None:
        self._starts, self._look = watch.starts, watch.fetches.look
        self._lines = watch.loader_lines
        self._before_s = self._starts.spent_s
        self._starts_s: list[float] = []
        self._last: Any = None
        self._datasets: Counter[int] = Counter()
        self._workers = _Workers()
        self._is_plain: bool | None = None

    def begin(self) -> None:
        """Ask every process that makes batches to look."""
        self._look.begin()

    def loaded(self, iterator: Any, batch: Any) -> None:
        """Note which dataset a batch comes from, who made it, and whether by torch's collate."""
        from torch.utils.data import default_collate

        self._last = id(iterator._dataset)
        self._workers.loaded(iterator)
        if self._is_plain is None:
            self._is_plain = iterator._collate_fn is default_collate

    def backward(self, tensors: Any) -> None:
        """Credit the batch to training: others are for evaluation."""
        if self._last is not None:
            self._datasets[self._last] += 1

    def ended(self) -> None:
        """Note how long worker starts took in this step."""
        self._starts_s.append(self._starts.spent_s - self._before_s)
        self._before_s = self._starts.spent_s

    def end(self) -> dict[str, Any]:
        """Stop looking; merge what all processes saw of the training dataset."""
        dataset = self._datasets.most_common(1)[0][0] if self._datasets else 0
        told = self._look.end(dataset)
        found: dict[str, Any] = {
            "starts_s": self._starts_s,
            "made_at": list(filter(None, [self._lines.of(dataset)])),
            **self._starts.read(),
            "collates_plainly": self._is_plain,
            **self._workers.read(),
        }
        batch_count = sum(one["batch_count"] for one in told)
        if not batch_count:
            return found
        kinds: Counter[str] = Counter()
        for one in told:
            kinds.update(one["kinds"])
        again_count, same_count = merge([one["repeats"] for one in told])
        return {
            **found,
            "kinds": dict(kinds),
            "places": {kind: _places(kind, told) for kind in kinds},
            "batch_s": sum(one["wall_ns"] for one in told) * 1e-9 / batch_count,
            "item_count": sum(one["item_count"] for one in told) / batch_count,
            "again_count": again_count,
            "same_count": same_count,
        }


def _places(kind: str, told: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the lines that most samples of a kind fell on."""
    counts: Counter[tuple[str, int]] = Counter()
    for one in told:
        for path, line, count in one["places"].get(kind, ()):
            counts[path, line] += count
    return [place for place, _ in counts.most_common(_PLACE_COUNT)]


class _Workers:
    """CPU time and memory of the workers of the newest pass."""

    def __init__(self) -> None:
        self._pids: list[int] = []
        self._iterator_id = self._batch_count = 0
        self._before_s = 0.0

    def loaded(self, iterator: Any) -> None:
        """Count a batch; start over with each new pass."""
        if id(iterator) != self._iterator_id:
            workers = getattr(iterator, "_workers", ())
            self._pids = [worker.pid for worker in workers if worker.pid]
            self._iterator_id, self._batch_count = id(iterator), 0
            self._before_s = self._cpu_s()
        self._batch_count += 1

    def _cpu_s(self) -> float:
        turns = (processes.turns(pid).values() for pid in self._pids)
        return sum(turn.run_s for worker in turns for turn in worker)

    def read(self) -> dict[str, Any]:
        """Return CPU seconds of all workers per batch, and bytes that are private to each."""
        if not self._pids or self._batch_count < _LEAST_COUNT:
            return {}
        spent_s = self._cpu_s() - self._before_s
        private = [seen.private_bytes for pid in self._pids if (seen := processes.mapped(pid))]
        return {
            "worker_cpu_s": spent_s / self._batch_count if spent_s > 0 else None,
            "worker_bytes": sum(private) / len(private) if private else None,
        }


EXAMINER = Loading
