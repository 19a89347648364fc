"""Other engines for the same scripts: the edits a user would have to make, as text."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

OWN = "from torch.utils.data import DataLoader\n"

STATEFUL = "from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader\n"

# Batches in sampler order, as close to the stock loader as it gets.
SPDL = """\
from functools import partial

from spdl.dataloader import get_pytorch_dataloader

DataLoader = partial(get_pytorch_dataloader, in_order=True)
"""

# Threads, its default. With `mp_prefetch`, each pass restarts Python and torch in every worker.
GRAIN = """\
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import grain
from torch.utils.data import default_collate


class DataLoader:
    def __init__(self, dataset, batch_size=1, shuffle=False, num_workers=0):
        self.items = grain.MapDataset.source(dataset)
        self.batch_size, self.shuffle = batch_size, shuffle
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        items = self.items.shuffle(seed=self.epoch) if self.shuffle else self.items
        return iter(items.batch(self.batch_size, batch_fn=default_collate).to_iter_dataset())
"""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another engine.

    Attributes:
        name: its name in the table.
        package: the package that must be installed.
        edit: replaces the import of torch's DataLoader.
        worker_counts: counts to sweep; the fastest is raced. Empty means the script's own count.
    """

    name: str
    package: str
    edit: str
    worker_counts: tuple[int, ...] = ()

    @property
    def is_installed(self) -> bool:
        """Whether its package is installed."""
        return find_spec(self.package) is not None

    def apply(self, script: str) -> str:
        """Return the script with its import edited."""
        if OWN not in script:
            raise ValueError("the script does not import DataLoader on a line of its own")
        return script.replace(OWN, self.edit, 1)


PEERS = (
    Peer(
        name="stock DataLoader, best num_workers",
        package="torch",
        edit=OWN,
        worker_counts=(0, 1, 2, 4),
    ),
    Peer(name="torchdata StatefulDataLoader", package="torchdata", edit=STATEFUL),
    Peer(name="SPDL get_pytorch_dataloader", package="spdl", edit=SPDL, worker_counts=(1, 2)),
    Peer(name="grain MapDataset", package="grain", edit=GRAIN, worker_counts=(0,)),
)
