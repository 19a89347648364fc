"""Who fetches the batches of a loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hasten.loader.indices import foreseen, order_of
from hasten.loader.random_states import reachable
from hasten.loader.workers.tasks import Draws

_NOT_FORKED = (
    "sqlite3", "h5py", "lmdb", "socket", "ssl", "asyncio", "concurrent", "multiprocessing.pool",
    "grpc", "tensorflow", "jax", "psycopg2", "redis", "pymongo",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """What the levers ask for.

    Attributes:
        count: worker processes; None means the script's own number.
        redraws: the workers may draw random numbers of their own.
    """

    count: int | None = None
    redraws: bool = False


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Who fetches.

    Attributes:
        count: worker processes; 0 means the main process.
        draws: whose random numbers the items draw.
        logical_count: workers that the script has, or seems to have.
        provisional: whether fewer processes will do once items are known to change nothing.
    """

    count: int
    draws: Draws
    logical_count: int
    provisional: bool = False


HERE = WorkerPlan(0, Draws.NONE, 0)


def stay(loader: Any) -> bool:
    """Return whether the script's own workers stay from pass to pass."""
    return bool(loader.persistent_workers and loader.num_workers > 0)


def forks(loader: Any) -> bool:
    """Return whether a loader's workers are forks of this process, not started from scratch."""
    import multiprocessing

    context = loader.multiprocessing_context or multiprocessing
    method = context.get_start_method(allow_none=True)
    return (method or multiprocessing.get_all_start_methods()[0]) == "fork"


def why_not_elsewhere(loader: Any) -> str:
    """Say why a loader without workers must make its items itself; empty where it need not."""
    if not foreseen(loader):
        order = type(order_of(loader)).__name__
        return f"the order comes from {order}, which may look at anything between two batches"
    for value in reachable(loader.dataset):
        module = type(value).__module__ or ""
        if any(module == name or module.startswith(f"{name}.") for name in _NOT_FORKED):
            name = f"{module}.{type(value).__name__}"
            return f"the dataset holds a {name}, which processes cannot share"
    return ""
