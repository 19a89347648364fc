"""The small training scripts that `loader.py` measures, as text.

Each script is run unmodified, by plain python and by `hasten run`. It waits for commands on its
stdin: `time` runs the epochs and prints their seconds; `hash` runs them again with a fixed
seed and prints hashes of all batches, of the random states after each epoch, and of the
weights. Names that begin with a dollar sign are placeholders that the case fills in.
"""

from __future__ import annotations

HEAD = """\
import copy
import hashlib
import json
import random
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset, TensorDataset
"""

SERVE = """

def absorb(digest, thing):
    digest.update(type(thing).__name__.encode())
    if isinstance(thing, torch.Tensor):
        shape = thing.dtype, tuple(thing.shape), thing.stride(), thing.is_pinned()
        digest.update(repr(shape).encode())
        digest.update(thing.detach().contiguous().numpy().tobytes())
    elif isinstance(thing, np.ndarray):
        digest.update(repr((thing.dtype, thing.shape)).encode() + thing.tobytes())
    elif isinstance(thing, dict):
        for key, value in thing.items():
            digest.update(repr(key).encode())
            absorb(digest, value)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            absorb(digest, value)
    else:
        digest.update(repr(thing).encode())


def hash_of(*things):
    digest = hashlib.sha256()
    for thing in things:
        absorb(digest, thing)
    return digest.hexdigest()


def time_epochs(loader, train):
    started_s = time.perf_counter()
    for _ in range($EPOCHS):
        for batch in loader:
            if $TRAINS:
                train(batch)
    return {"wall_s": time.perf_counter() - started_s}


def hash_epochs(loader, train, model, start):
    model.load_state_dict(start)
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)
    batches, states = [], []
    for _ in range($HASHED):
        digest = hashlib.sha256()
        for batch in loader:
            absorb(digest, batch)
            train(batch)
        batches.append(digest.hexdigest())
        states.append(hash_of(torch.get_rng_state(), random.getstate(), *np.random.get_state()))
    weights = hash_of(*model.state_dict().values())
    return {"batches": batches, "states": states, "weights": weights}


def serve(loader, model, loss_of):
    start = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(batch):
        optimizer.zero_grad()
        loss_of(batch).backward()
        optimizer.step()

    for line in sys.stdin:
        if line.strip() == "time":
            answer = time_epochs(loader, train)
        else:
            answer = hash_epochs(loader, train, model, start)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
"""

ROWS = """

def main():
    torch.manual_seed(3)
    rows, labels = torch.randn($ROWS, $WIDTH), torch.randint(10, ($ROWS,))
    dataset = TensorDataset(rows, labels)
    loader = DataLoader(dataset, batch_size=128, shuffle=True, num_workers=$WORKERS)
    model = nn.Linear($WIDTH, 10)
    serve(loader, model, lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
"""

CIFAR = """
import torchvision
from torchvision import transforms


def main():
    torch.manual_seed(3)
    # made files: the class reads them as it reads the real ones
    torchvision.datasets.CIFAR10._check_integrity = lambda self: True
    torchvision.datasets.cifar.check_integrity = lambda *words: True
    normalize = transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    dataset = torchvision.datasets.CIFAR10(
        "$FOLDER", transform=transforms.Compose([transforms.ToTensor(), normalize])
    )
    loader = DataLoader(dataset, batch_size=128, shuffle=True, num_workers=$WORKERS)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    serve(loader, model, lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
"""

FILES = """
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main():
    torch.manual_seed(3)
    chain = transforms.Compose([
        transforms.Resize(128),
        transforms.CenterCrop(112),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
    ])
    dataset = ImageFolder("$FOLDER", chain)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=$WORKERS)
    model = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(3 * 7 * 7, 10))
    serve(loader, model, lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
"""

SHORT = """

class Tiny(Dataset):
    def __init__(self):
        self.rows = np.random.default_rng(3).normal(size=(64, 64)).astype(np.float32)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(np.tanh(self.rows[index])), index % 10


def main():
    torch.manual_seed(3)
    dataset = Tiny()
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=$WORKERS)
    model = nn.Linear(64, 10)
    serve(loader, model, lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
"""

BLAS = """

class Products(Dataset):
    def __init__(self):
        drawn = np.random.default_rng(3)
        self.rows = drawn.normal(size=($ROWS, $WIDTH, $WIDTH)).astype(np.float32)
        self.basis = (drawn.normal(size=($WIDTH, $WIDTH)) / $WIDTH**0.5).astype(np.float32)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        item = self.rows[index]
        for _ in range($PRODUCTS):
            item = np.tanh(item @ self.basis)
        return item[0], index % 10


def main():
    torch.manual_seed(3)
    dataset = Products()
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=$WORKERS)
    model = nn.Linear($WIDTH, 10)
    serve(loader, model, lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
"""

DICTS = """

class Dicts(Dataset):
    def __init__(self):
        self.rows = np.random.default_rng(3).normal(size=($ROWS, 16)).astype(np.float32)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return {"row": row, "scaled": row * 0.5, "label": np.int64(index % 10)}


def main():
    torch.manual_seed(3)
    dataset = Dicts()
    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=$WORKERS)
    model = nn.Linear(16, 10)
    serve(loader, model, lambda batch: F.cross_entropy(model(batch["row"]), batch["label"]))
"""

DRAWS = """

class Drawn(Dataset):
    def __init__(self):
        self.rows = np.random.default_rng(3).normal(size=($ROWS, 256)).astype(np.float32)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = torch.from_numpy(self.rows[index].copy())
        for _ in range($WORDS):  # python code that holds the interpreter, and draws
            place = random.randrange(256)
            row[place] = row[place] * random.random()
        return row + 0.1 * torch.randn(256) * float(np.random.rand()), index % 10


def main():
    torch.manual_seed(3)
    dataset = Drawn()
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=$WORKERS)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    serve(loader, model, lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
"""
