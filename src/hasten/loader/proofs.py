"""What is proven about a script's loaders, each examined once."""

from __future__ import annotations

import sys
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hasten.loader.cache.cached import base_of, what_is_kept
from hasten.loader.cache.recipes import is_folder
from hasten.loader.indices import order_of
from hasten.loader.proof.prove import prove
from hasten.loader.proof.verdict import ASSUMPTION
from hasten.loader.sources import batched_items

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from hasten.loader.proof.verdict import LoaderProof
    from hasten.loader.worker_plan import WorkerRequest
    from hasten.records import LoaderTraits

_FREE_COUNT = 3  # of proofs: data to train on, to evaluate on, and one more
_REPAID_RATIO = 3.0


@dataclass(slots=True)
class LoaderLife:
    """How long the loop waits for the batches of one loader where torch makes them alone.

    Attributes:
        usual_s: seconds of such a pass over the last loader like it; 0 where none is known.
        expected_s: seconds of all passes over that one; 0 where they are not known.
        waited_s: seconds so far.
        pass_count: passes so far.
        plain_count: those among them whose batches torch makes alone.
    """

    usual_s: float = 0.0
    expected_s: float = 0.0
    waited_s: float = 0.0
    pass_count: int = 0
    plain_count: int = 0

    @property
    def pass_s(self) -> float:
        """Seconds of such a pass."""
        return self.waited_s / self.plain_count if self.plain_count else self.usual_s

    @property
    def whole_s(self) -> float:
        """Seconds of as many such passes as there were."""
        return self.pass_count * self.pass_s


@dataclass(frozen=True, slots=True)
class Permit:
    """What may be done with a loader; all that levers can do if the user vouches for it.

    Attributes:
        is_pure: making an item has no effects outside the batch.
        is_unchanged: in addition, what it reads stays as it is.
        draws: whether items may draw random numbers; None if only their batches can tell.
        missing: what may not be done, and why; empty if everything may.
    """

    is_pure: bool = True
    is_unchanged: bool = True
    draws: bool | None = None
    missing: str = ""

    def allows(
        self, loader: Any, request: WorkerRequest, offers: Sequence[Any], setups: Sequence[Any]
    ) -> bool:
        """Return whether anything that levers ask for may be done for a loader."""
        own = int(loader.num_workers)
        if self.is_unchanged or (offers and not own) or self.setups(setups):
            return True
        return self.is_pure and own > 0 and request.count is not None

    def setups(self, setups: Sequence[Any]) -> tuple[Any, ...]:
        """Return the setups that may act in workers: making items twice requires pure items."""
        return tuple(setups) if self.is_pure else ()


def permit_of(proof: LoaderProof) -> Permit:
    """Return what may be done with a loader, given what is proven about it."""
    if proof.is_whole:
        return Permit(draws=proof.draws)
    who = "processes that start anew with each pass" if proof.is_pure else "the script"
    why = f"only {who} may make these batches without --assume {ASSUMPTION}: {proof.message}"
    return Permit(is_pure=proof.is_pure, is_unchanged=False, missing=why)


class Proofs:
    """Keeps the proof of each dataset and collate function.

    What is proven stays proven: code that can run later could also run at the first look, except
    in the later cells of a notebook.

    Attributes:
        cost_s: the seconds that the last proof took; the first one also reads the files.
    """

    def __init__(self) -> None:
        self.cost_s = 0.0
        self._made_count = 0
        self._lives: dict[type, LoaderLife] = {}
        self._known: dict[tuple[Any, ...], tuple[list[Any], LoaderProof]] = {}
        self._last: dict[int, LoaderProof] = {}
        self._batchable: set[int] = set()
        self._folders: set[int] = set()
        self._draws: dict[int, bool | None] = {}
        self._keeping: dict[int, tuple[LoaderProof, str, bool]] = {}

    def of(self, loader: Any) -> LoaderProof:
        """Return what is proven about a loader."""
        key, parts, found = self._look_up(loader)
        if found is not None:
            return found
        began_s = time.monotonic()
        found = prove(loader)
        self.cost_s = time.monotonic() - began_s
        self._made_count += 1
        with suppress(TypeError):  # a collate function without weak references: again each time
            self._known[key] = [_weakly(part, loader) for part in parts], found
        self._last[id(loader.dataset)] = found
        return found

    def begin_life(self, loader: Any) -> LoaderLife:
        """Return the record of a new loader, which begins with that of the last one like it."""
        kind = type(loader.dataset)
        before = self._lives.get(kind)
        life = LoaderLife() if before is None else LoaderLife(before.pass_s, before.whole_s)
        self._lives[kind] = life
        return life

    def repay(self, loader: Any, life: LoaderLife) -> bool:
        """Return whether a loader's proof is known, or worth its time.

        An evaluation may end before a proof is ready, and a script that makes a dataset for each
        of many short trainings would wait for proofs, not for data. Their batches are torch's
        until waiting for them has cost as much as a proof, or where loaders like it have shown
        that it will cost much more.
        """
        import torch

        return (
            (torch.is_grad_enabled() and self._made_count < _FREE_COUNT)
            or life.waited_s >= self.cost_s
            or life.expected_s >= _REPAID_RATIO * self.cost_s
            or self._look_up(loader)[2] is not None
        )

    def _look_up(self, loader: Any) -> tuple[tuple[Any, ...], list[Any], LoaderProof | None]:
        """Return the key and the parts that a proof is about, and the proof if there is one."""
        parts = [loader.dataset, loader.collate_fn]
        # A dataset may be used with different ones; torch's other samplers read nothing.
        parts += [loader.worker_init_fn] * (loader.worker_init_fn is not None)
        order = order_of(loader)
        parts += [order] * (type(order).__name__ == "SubsetRandomSampler")
        parts += _cell()  # other cells of a notebook come later, and may do anything
        key = (loader._auto_collation, *map(id, parts))
        seen, proof = self._known.get(key, ([], None))
        same = proof is not None and all(s() is p for s, p in zip(seen, parts, strict=True))
        return key, parts, proof if same else None

    def look(self, loader: Any) -> None:
        """Examine a loader for `add`, since the parent asks what could be done."""
        found, dataset = self.of(loader), id(loader.dataset)
        if not isinstance(batched_items.offer(loader), str):
            self._batchable.add(dataset)
        if is_folder(base_of(loader.dataset)):
            self._folders.add(dataset)
        # What sets workers up counts as drawing, too, if it seeds them.
        is_told = found.is_pure and loader.worker_init_fn is None
        self._draws[dataset] = found.draws if is_told else None
        known = self._keeping.get(dataset)
        if known is None or known[0] is not found:
            self._keeping[dataset] = found, *what_is_kept(loader)

    def add(self, dataset: int, loader: LoaderTraits) -> LoaderTraits:
        """Return a loader's traits with what is proven about the dataset that feeds the loop.

        Args:
            dataset: its `id`.
            loader: the traits of the loader that reads it.
        """
        found = self._last.get(dataset)
        if found is None:
            return loader
        _, unkept, opens_pictures = self._keeping.get(dataset, (found, "", False))
        return replace(
            loader, is_pure=found.is_pure, is_unchanged=found.is_whole, unproven=found.message,
            is_batchable=dataset in self._batchable, is_folder=dataset in self._folders,
            draws=self._draws.get(dataset) if loader.draws is None else loader.draws,
            unkept=unkept, opens_pictures=opens_pictures,
        )  # fmt: skip


def _cell() -> list[Any]:
    """Return the code of the notebook's cell, or of the script, that is running in this thread."""
    frame: FrameType | None = sys._getframe()
    space = getattr(sys.modules.get("__main__"), "__dict__", None)
    while frame is not None:
        is_whole = frame.f_code.co_name == "<module>" or frame.f_code.co_name.startswith("<cell")
        if is_whole and frame.f_globals is space:
            return [frame.f_code]
        frame = frame.f_back
    return []


def _weakly(part: Any, loader: Any) -> Callable[[], Any]:
    """Return what gives a part of a loader back while it lives; a list, while its loader does."""
    try:
        return weakref.ref(part)
    except TypeError:
        if part is not loader.dataset:
            raise
        owner = weakref.ref(loader)
        return lambda: getattr(owner(), "dataset", None)
