"""Read the code that makes the items of a loader, and its batches."""

from __future__ import annotations

import ast
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

from hasten.loader.proof import body as bodies
from hasten.loader.proof import calls, containers, world
from hasten.loader.proof.follower import Follower
from hasten.loader.proof.frame import Given
from hasten.loader.proof.kinds import is_arrow_table, loader_in
from hasten.loader.proof.objects import attribute_of
from hasten.loader.proof.reads import Facts, Reads
from hasten.loader.proof.source import is_user_function
from hasten.loader.proof.values import Value, either, new
from hasten.loader.view import worker_setup

_MOST_LOOKS = 6


def read_items(loader: Any) -> tuple[Reads, bool]:
    """Follow what makes a batch; return what it reads, and whether the batch shares any of it."""
    facts = Facts()
    for _ in range(_MOST_LOOKS):
        known = facts.size
        reads, shares = _read(loader, facts)
        if facts.size == known:
            return reads, shares
    reads.gap("its code is too large to be followed")
    return reads, True


class NewBatches:
    """Tells which objects give batches that hold nothing of what their items read.

    Args:
        proven: a loader of which that is known.

    Attributes:
        collates: collate functions whose batches hold nothing of whatever items they are given.
    """

    def __init__(self, proven: Any) -> None:
        self.collates: list[Any] = []
        self._kind = type(proven)
        self._known: dict[tuple[int, ...], bool] = {}
        self._known[self._key(proven)] = self._note(proven.collate_fn)

    def __call__(self, one: Any) -> bool:
        """Return whether an object is a loader with such batches, or iterates over one."""
        loader = one if isinstance(one, self._kind) else loader_in(one)
        if loader is None or is_user_function(type(loader).__iter__):
            return False
        key = self._key(loader)
        if key not in self._known:
            self._known[key] = self._examine(loader)
        return self._known[key]

    def _key(self, loader: Any) -> tuple[int, ...]:
        return tuple(map(id, _parts(loader)))

    def _examine(self, loader: Any) -> bool:
        dataset, collate, is_batched = _parts(loader)
        asked = SimpleNamespace(
            dataset=dataset, collate_fn=collate, _auto_collation=is_batched, num_workers=0
        )
        if not is_batched or collate is not _stock("default_collate"):
            reads, shares = read_items(asked)
            if shares or reads.gaps:
                return False
        return self._note(collate)

    def _note(self, collate: Any) -> bool:
        if collate is _stock("default_collate") or _copies(collate):
            self.collates.append(collate)
        return True


def _parts(loader: Any) -> tuple[Any, Any, bool]:
    """Return the dataset and the collate function of a loader or its iterator."""
    mine = vars(loader)
    dataset = mine.get("dataset", mine.get("_dataset"))
    return dataset, mine.get("collate_fn", mine.get("_collate_fn")), loader._auto_collation


def _copies(collate: Any) -> bool:
    """Return whether what a collate function returns holds nothing of what it is given."""
    reads = Reads(Facts(mixes=True))
    body = bodies.Body(Follower(reads), "", {}, {}, None, {})
    given = Given([new(shares=True, kind=list)], {}, ast.Pass())
    made = calls.call_object(body, collate, given)
    return not reads.gaps and not reads.keeps([made])


def _read(loader: Any, facts: Facts) -> tuple[Reads, bool]:
    from torch.utils.data import IterableDataset

    reads, dataset = Reads(facts), loader.dataset
    body = bodies.Body(Follower(reads), "", {}, {}, None, {})
    node = ast.Pass()
    if not hasattr(type(dataset), "__getitem__") or isinstance(dataset, IterableDataset):
        reads.gap("its items are a stream, not a table")
        return reads, True
    batch = _batch(body, loader, node)
    holds = reads.keeps([batch])
    _worker(body, loader, node)
    world.answer(body)
    return reads, holds


def _batch(body: Any, loader: Any, node: ast.AST) -> Value:
    sample = _item(body, loader.dataset, node, batched=loader._auto_collation)
    if loader.collate_fn is _stock("default_collate") and not _is_extended(body):
        return new(flat=True)  # it copies all that could be shared
    given = sample
    if loader._auto_collation:
        given = new(shares=body.reads.keeps([sample]), kind=list)
    elif loader.collate_fn is _stock("default_convert"):
        return sample
    return calls.call_object(body, loader.collate_fn, Given([given], {}, node))


def _is_extended(body: Any) -> bool:
    """Return whether the script registered its own types with torch's collate function."""
    from torch.utils.data._utils import collate

    if not any(map(is_user_function, collate.default_collate_fn_map.values())):
        return False
    body.gap("the script extends default_collate", None)
    return True


def _item(body: Any, dataset: Any, node: ast.AST, *, batched: bool) -> Value:
    """Follow what makes one item, or a list of them."""
    found = []
    names = ["__getitem__"]
    if batched and attribute_of(dataset, "__getitems__") is not None:
        names.append("__getitems__")
    for name in names:
        raw = attribute_of(type(dataset), name)  # Python looks it up on the class
        target = attribute_of(dataset, name) if name == "__getitems__" else raw
        if isinstance(target, FunctionType):
            target = MethodType(target, dataset)
        if not isinstance(target, MethodType) or is_arrow_table(dataset):
            found.append(containers.member(body, body.reads.load(dataset), ..., node))
            continue
        index = new(flat=True) if name == "__getitem__" else new(kind=list)
        found.append(calls.call_object(body, target, Given([index], {}, node)))
    body.reads.load(dataset)
    return either(*found)


def _worker(body: Any, loader: Any, node: ast.AST) -> None:
    """Follow what a worker process runs at its start: it may only seed generators."""
    setup = worker_setup(loader)
    if setup is None:
        return
    body.follower.in_worker = True
    calls.call_object(body, setup, Given([new(flat=True)], {}, node))
    body.follower.in_worker = False


def _stock(name: str) -> Any:
    from torch.utils.data._utils import collate

    return getattr(collate, name)
