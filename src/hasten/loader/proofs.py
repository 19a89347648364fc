"""What is proven about a script's loaders, each examined once."""

from __future__ import annotations

import sys
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hasten.loader.cache.cached import base_of, what_is_kept
from hasten.loader.cache.recipes import is_folder
from hasten.loader.indices import order_of
from hasten.loader.proof.prove import prove
from hasten.loader.proof.verdict import ASSUMPTION
from hasten.loader.sources.offers import why_not_batched
from hasten.loader.view import worker_setup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from hasten.loader.proof.verdict import LoaderProof
    from hasten.loader.worker_plan import WorkerRequest
    from hasten.records import LoaderTraits

_FREE_COUNT = 3  # of proofs: data to train on, to evaluate on, and one more


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


@dataclass(slots=True)
class ItemFacts:
    """What is known about a loader's items, whoever makes them.

    Attributes:
        permit: what may be done with them.
        draws: whether they draw random numbers; None while unknown.
        keeps: whether workers may stay from pass to pass, judging by what has been seen.
    """

    permit: Permit = field(default_factory=Permit)
    draws: bool | None = None
    keeps: bool = True


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
        self._waited_s: dict[type, float] = {}
        self._known: dict[tuple[Any, ...], tuple[list[Any], LoaderProof]] = {}
        self._examined: dict[int, tuple[LoaderProof, dict[str, Any]]] = {}

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
        self._waited_s[type(loader.dataset)] = 0.0
        return found

    def waited(self, loader: Any, seconds: float) -> None:
        """Note how long the loop waited for a batch that torch made alone."""
        kind = type(loader.dataset)
        self._waited_s[kind] = self._waited_s.get(kind, 0.0) + seconds

    def repay(self, loader: Any) -> bool:
        """Return whether a loader's proof is known, or worth its time.

        An evaluation may end before a proof is ready, and a script that makes a dataset for each
        of many short trainings would wait for proofs, not for data. Their batches are torch's
        until waiting for those of datasets like it has cost as much as a proof.
        """
        import torch

        return (
            (torch.is_grad_enabled() and self._made_count < _FREE_COUNT)
            or self._waited_s.get(type(loader.dataset), 0.0) >= self.cost_s
            or self._look_up(loader)[2] is not None
        )

    def _look_up(self, loader: Any) -> tuple[tuple[Any, ...], list[Any], LoaderProof | None]:
        """Return the key and the parts that a proof is about, and the proof if there is one."""
        parts = [loader.dataset, loader.collate_fn]
        # A dataset may be used with different ones; torch's other samplers read nothing.
        parts += [setup for setup in (worker_setup(loader),) if setup is not None]
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
        known, _ = self._examined.get(dataset, (None, {}))
        if known is found:
            return
        # What sets workers up counts as drawing, too, if it seeds them.
        is_told = found.is_pure and worker_setup(loader) is None
        unkept, opens_pictures = what_is_kept(loader)
        self._examined[dataset] = (
            found,
            {
                "is_pure": found.is_pure,
                "is_unchanged": found.is_whole,
                "unproven": found.message,
                "unbatched": why_not_batched(loader),
                "is_folder": is_folder(base_of(loader.dataset)),
                "draws": found.draws if is_told else None,
                "unkept": unkept,
                "opens_pictures": opens_pictures,
            },
        )

    def add(self, dataset: int, loader: LoaderTraits) -> LoaderTraits:
        """Return a loader's traits with what is proven about the dataset that feeds the loop."""
        _, traits = self._examined.get(dataset, (None, {}))
        if traits and loader.draws is not None:
            traits = {**traits, "draws": loader.draws}
        return replace(loader, **traits)


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
