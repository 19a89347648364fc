"""A faster source, trusted only as long as it equals torch's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasten.loader import random_states
from hasten.loader.batch_equality import difference
from hasten.loader.fingerprint import fingerprint
from hasten.loader.indices import listed
from hasten.loader.notices import said

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.loader.sources.source import Source, Stock

_WHOLE_COUNT = 5
_RARELY = 256
_PATIENCE_COUNT = 3


def due(number: int) -> bool:
    """Return whether the batch with this number is compared: the first, then ever more rarely.

    >>> [number for number in range(600) if due(number)]
    [0, 1, 4, 16, 64, 256, 512]
    """
    is_power_of_4 = number & (number - 1) == 0 and number.bit_length() % 2 == 1
    return is_power_of_4 or number % _RARELY == 0


def _arrived(source: Any, stock: Any, quiet: bool) -> Any:
    if source is None:
        return stock
    return Checked(source, stock, quiet=quiet, on_end=lambda why, is_wrong: None)


@dataclass(slots=True)
class Trust:
    """How far a source has been found right for one loader, from pass to pass.

    It holds nothing of the script's, so the loader ends with its last user.

    Attributes:
        name: of the source.
        number: batches asked for since comparisons began.
        change_count: batches that could not be compared.
        is_over: the source was given up.
    """

    name: str = ""
    number: int = 0
    change_count: int = 0
    is_over: bool = False


class Checked:
    """Fetch with a source, and compare it with torch's own way every now and then.

    If they differ in anything - bits, strides, types, the generators afterwards - or if
    the source raises, the loader switches back to torch's own for good. The batch delivered then
    is torch's, so nobody sees the other one. After the first few batches only two samples of a
    batch are compared, as torch takes as long for a whole batch as the source for dozens.

    What items write into the dataset, or draw from its own generators, cannot be undone.
    If torch's own making of a batch is seen to do so, the source is not tried; after a few
    such batches the source is given up.

    Args:
        source: the faster way.
        stock: torch's own.
        on_end: told, in one sentence, why the source was given up, and whether it was wrong.
        quiet: the items are proven to draw nothing.
        trust: what earlier passes have shown; None at the first one.
    """

    def __init__(
        self, source: Source, stock: Stock, *, on_end: Callable[..., None], quiet: bool = False,
        trust: Trust | None = None,
    ) -> None:  # fmt: skip
        self._source = source
        self._trust = trust or Trust()
        self.stock = stock
        self.pure = source.pure
        self.quiet = quiet
        self.name = source.name
        self._light = source.light
        self._on_end = on_end
        self._private: random_states.Private | None = None

    @property
    def source(self) -> Source | None:
        """The faster way; None where it was given up."""
        return None if self._trust.is_over else self._source

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for a worker without the callback, which belongs to this process."""
        return _arrived, (self.source, self.stock, self.quiet)

    def fetch(self, indices: Sequence[int], *, fast: bool = False) -> Any:
        """Return the batch of `indices`.

        Args:
            indices: of one batch.
            fast: they are one of our tensors, where torch's sampler gives a list.
        """
        if self.source is None:
            return self._of_stock(indices, fast=fast)
        number, self._trust.number = self._trust.number, self._trust.number + 1
        if due(number):
            few = number >= (_WHOLE_COUNT if self._light else 1)
            # What the script's own sampler gives may be more than its members.
            few = few and (fast or type(indices) is list) and len(indices) > 2
            return self._spot(indices, fast=fast) if few else self._both(indices, fast=fast)
        draws = not (self.pure or self.quiet)
        return self._alone(indices, random_states.read() if draws else None, fast=fast)

    def _of_stock(self, indices: Sequence[int], *, fast: bool) -> Any:
        return self.stock.fetch(listed(indices) if fast else indices)

    def _spot(self, indices: Sequence[int], *, fast: bool) -> Any:
        """Deliver a batch after a comparison of two samples, from the same random numbers."""
        before = random_states.read()
        try:
            self._both([int(indices[0]), int(indices[-1])] if fast else [indices[0], indices[-1]])
        except Exception:  # the script's collate function may ask for more than any two
            random_states.restore(before)
            return self._both(indices, fast=fast)
        random_states.restore(before)
        return self._alone(indices, before, fast=fast)

    def _alone(
        self, indices: Sequence[int], before: random_states.States | None, *, fast: bool
    ) -> Any:
        if self.source is None:
            return self._of_stock(indices, fast=fast)
        try:
            return self.source.fetch(indices)
        except Exception as error:
            if before is not None:
                random_states.restore(before)
            self._end(f"{self.name} raised {said(error)}", is_wrong=False)
            return self._of_stock(indices, fast=fast)

    def _both(self, indices: Sequence[int], *, fast: bool = False) -> Any:
        looked = self._looks()
        before = random_states.read()
        truth = self._of_stock(indices, fast=fast)  # raises what the script would see
        after = random_states.read()
        if looked != self._looks():
            self._put_off()
            return truth
        random_states.restore(before)
        has_raised = False
        try:
            ours = self.source.fetch(indices)  # type: ignore[union-attr]
            found = difference(truth, ours)
            if not found and random_states.read() != after:
                found = "the random generators afterwards"
        except Exception as error:
            found, has_raised = f"it raised {said(error)}", True
        random_states.restore(after)
        if found:
            why = f"{self.name} differs from torch's own batch: {found}"
            self._end(why, is_wrong=not has_raised)
        return truth

    def _looks(self) -> Any:
        """Return what items could change; None for light sources, which run only known code."""
        if self._light:
            return None
        roots = self.stock.roots
        if self._private is None:
            self._private = random_states.Private(*roots)
        return [fingerprint(root) for root in roots], self._private.read()

    def _put_off(self) -> None:
        """Compare the next batch instead, since a dataset's first items may open its files."""
        self._private = None  # or make their generators
        self._trust.change_count += 1
        if self._trust.number > 1 or self._trust.change_count > _PATIENCE_COUNT:
            self._end(f"{self.name} cannot be compared: the dataset changes while it is read")
        self._trust.number = 0

    def _end(self, why: str, *, is_wrong: bool = True) -> None:
        self._trust.is_over = True
        self._on_end(why, is_wrong=is_wrong)
