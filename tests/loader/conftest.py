"""What the tests of the loader share: one process in which stock loaders and ours run."""

import importlib
import sys

import pytest

HEAD = r"""
import gc, hashlib, json, os, random, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, get_worker_info
from hasten.instrument import Watch
from hasten.loader.engine import LoaderEngine

torch.set_num_threads(1)
watch, engine = Watch(measuring=False), LoaderEngine(granted=True)
watch.live.on_loader(engine.make)
watch.live.on_next(engine.advance)
watch.install()
facts = {}


class Numbers(Dataset):
    def __init__(self, count=12):
        self.count = count
        self.scale = 1

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.scale * i


class Draws(Numbers):
    def __getitem__(self, i):
        return i, torch.rand(()).item()


class Who(Numbers):
    def __getitem__(self, i):
        return os.getpid()


def rng():
    return hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:8]


def plain(batch):
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def epochs(loader, count=3, at=None):
    seen = []
    for epoch in range(count):
        order = []
        for number, batch in enumerate(loader):
            if at and (epoch, number) in at:
                engine.want(at[epoch, number])
            order.append(plain(batch))
        seen.append([order, rng()])
    return seen


def stock(run):
    watch.pause()
    try:
        torch.manual_seed(7)
        return run()
    finally:
        watch.resume()


def ours(run, wanted):
    torch.manual_seed(7)
    engine.want(wanted)
    try:
        return run()
    finally:
        engine.want(None)


def same(run, wanted):
    before, after = stock(run), ours(run, wanted)
    return True if before == after else f"stock {before} and now {after}"
"""


@pytest.fixture(scope="session")
def loaders(gathered):
    """Run a program after HEAD and return the `facts` that it gathered."""
    return lambda program, **limits: gathered(f"{HEAD}\n{program}", **limits)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put stand-ins of libraries where installed ones lie, by the text of each file."""

    def write(texts):
        home = tmp_path / "site-packages"
        for name, text in texts.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            monkeypatch.setitem(sys.modules, module, None)  # what is imported now goes at the end
            del sys.modules[module]
        monkeypatch.syspath_prepend(str(home))
        importlib.invalidate_caches()

    return write
