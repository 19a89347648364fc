"""Which process of a distributed training this one is."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

_LOCAL_COUNTS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


@dataclass(frozen=True, slots=True)
class Rank:
    """One process among those that train together.

    Attributes:
        number: its rank, 0 where it trains alone.
        local_count: ranks on this machine.
        total_count: ranks on all machines.
    """

    number: int = 0
    local_count: int = 1
    total_count: int = 1


class Team(NamedTuple):
    """A process of a run that shares batches, and where the first of them listens."""

    rank: int
    rank_count: int
    address: str
    port: int


def own_rank() -> Rank:
    """Return the rank of this process, once the script has initialized `torch.distributed`."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Rank()
    total_count = distributed.get_world_size()
    local_count = min(total_count, launched_count() or total_count)
    return Rank(distributed.get_rank(), local_count, total_count)


def launched_count() -> int | None:
    """Return how many ranks a launcher started on this machine; None where it does not say."""
    told = [os.environ[name] for name in _LOCAL_COUNTS if os.environ.get(name, "").isdecimal()]
    return int(told[0]) if told else None
