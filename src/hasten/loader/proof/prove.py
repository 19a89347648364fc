"""Put the three reasons together."""

from __future__ import annotations

import sys
import warnings
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hasten.loader.indices import order_of
from hasten.loader.notices import said
from hasten.loader.proof.holders import Heap, TooLarge, frames_of_threads, names_of, user_modules
from hasten.loader.proof.items import read_items
from hasten.loader.proof.script import Unreadable, code_of
from hasten.loader.proof.stores import Writes
from hasten.loader.proof.verdict import LoaderProof, MissingReason, ProofReason

if TYPE_CHECKING:
    from hasten.loader.proof.reads import Reads


def prove(loader: Any) -> LoaderProof:
    """Return what can be shown about a map-style loader, at the beginning of a pass over it."""
    try:
        return _prove(loader)
    except Exception as error:  # whatever cannot be followed is not proven
        why = f"its code cannot be followed ({said(error)})"
        return LoaderProof((MissingReason(ProofReason.PURE, why),), draws=True)


def _prove(loader: Any) -> LoaderProof:
    reads, shares = read_items(loader)
    _read_sampler(reads, order_of(loader))
    gaps = list(reads.gaps)
    if watcher := _watcher():
        gaps.append(MissingReason(ProofReason.PURE, f"the script is told of warnings by {watcher}"))
    if shares and not gaps:
        gaps.append(
            MissingReason(
                ProofReason.PURE, "a batch holds what the dataset keeps, and can be written"
            )
        )
    if gaps:
        return LoaderProof(tuple(gaps), draws=reads.draws)
    heap = Heap()
    frames, modules = frames_of_threads(heap), user_modules()
    try:
        names = names_of(reads, loader, frames, modules, heap)
        code = code_of(frames, modules, names.alive, heap.instances)
        gaps = Writes(reads, names, code).find()
    except TooLarge:
        gaps = [MissingReason(ProofReason.OWNED, "there is too much to look through")]
    except Unreadable as error:
        gaps = [MissingReason(ProofReason.UNWRITTEN, str(error))]
    return LoaderProof(tuple(gaps), draws=reads.draws)


def _read_sampler(reads: Reads, sampler: Any) -> None:
    """Note what a sampler reads during a pass: of torch's own, only this one reads anything."""
    if type(sampler).__name__ == "SubsetRandomSampler":
        reads.look_into(sampler)
        reads.attributes.add("indices")
        reads.load(sampler.indices)


def _watcher() -> str:
    """Return what observes the items' warnings in this process; empty if nothing does."""
    stock = (vars(warnings).get("_showwarning_orig"), vars(warnings).get("_showwarnmsg_impl"))
    if warnings.showwarning is not stock[0] or not isinstance(stock[1], FunctionType):
        return "warnings.showwarning"
    errors = getattr(sys.modules.get("numpy"), "geterrcall", None)
    return "numpy.seterrcall" if errors is not None and errors() is not None else ""
