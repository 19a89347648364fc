"""Who makes the batches, and what they are busy with meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from hasten.instrument.repeats import merge
from hasten.instrument.step_growth import StepGrowth

if TYPE_CHECKING:
    from hasten.instrument.watch import Watch

_PLACE_COUNT = 3


class Loading:
    """Look at the making of batches in this process and in forked workers."""

    def __init__(self, watch: Watch) -> None:
        self._starts, self._look = watch.starts, watch.fetches.look
        self._lines = watch.loader_lines
        self._growth = StepGrowth(lambda: self._starts.spent_s)
        self.ended = self._growth.ended
        self._last: Any = None
        self._datasets: Counter[int] = Counter()
        self._is_plain: bool | None = None
        self._look.begin()

    def loaded(self, iterator: Any, batch: Any) -> None:
        """Note which dataset a batch comes from, and whether torch's collate made it."""
        from torch.utils.data import default_collate

        self._last = id(iterator._dataset)
        if self._is_plain is None:
            self._is_plain = iterator._collate_fn is default_collate

    def backward(self, tensors: Any) -> None:
        """Credit the batch to training: others are for evaluation."""
        if self._last is not None:
            self._datasets[self._last] += 1

    def end(self) -> dict[str, Any]:
        """Stop looking; merge what all processes saw of the training dataset."""
        dataset = self._datasets.most_common(1)[0][0] if self._datasets else 0
        told = self._look.end(dataset)
        found: dict[str, Any] = {
            "starts_s": self._growth.seen,
            "made_at": list(filter(None, [self._lines.of(dataset)])),
            **self._starts.read(),
            "collates_plainly": self._is_plain,
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


EXAMINER = Loading
