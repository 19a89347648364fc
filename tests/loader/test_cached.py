"""The cache of samples: torch's batches, torch's draws, and nothing kept that could differ."""

import contextlib
import gc
import importlib
import itertools
import os
import pickle
import random
import sys
import time
import types
import uuid
import weakref
from time import perf_counter

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset
from torch.utils.data._utils import collate

from hasten.loader import random_states
from hasten.loader.batch_equality import difference
from hasten.loader.cache import cached, file_access, memo, store
from hasten.loader.cache.cached import Cache
from hasten.loader.cache.purity import PurityAnalysis
from hasten.loader.sources.checked import Checked
from hasten.loader.sources.source import Stock

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")
BUDGET = 1 << 26
BATCH = 8
EPOCH = 3
LIMITS = [1, 2, 3]


@pytest.fixture(autouse=True)
def _samples_cost_enough(monkeypatch):
    monkeypatch.setattr(memo, "_OVERHEAD_NS", -(10**12))
    monkeypatch.setattr(memo, "_LOOK_SHARE_RATIO", 1e9)


def seed(number):
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def passes(dataset, *, count=3, at=None, cache=None, twin=None, **settings):
    """Compare passes of the cached source with torch's own; return cache and last source.

    The two read twin datasets, as a run without the cache has one of its own.
    """
    cache = cache or Cache(BUDGET)
    loader = DataLoader(dataset, batch_size=BATCH, **settings)
    stock = Stock(DataLoader(twin or dataset, batch_size=BATCH, **settings))
    for number in range(count):
        if at:
            at(number)
        source = cache.offer(loader)
        if isinstance(source, str):
            return cache, source
        for start in range(0, len(dataset), BATCH):
            indices = list(range(start, min(start + BATCH, len(dataset))))
            seed(start)
            theirs, after = stock.fetch(indices), random_states.read()
            seed(start)
            ours = source.fetch(indices)
            assert difference(ours, theirs) == ""
            assert random_states.read() == after
    return cache, source


def kept(cache, source):
    """Return how many samples are kept; the reason of a memo that gave up is an entry too."""
    gave_up = isinstance(source, str) or source._memo.off
    return cache.counts()["entries"] - bool(gave_up)


def whole(make, **extra):
    """Return a dataset of a class of its own, whose items `make(self, index)` makes."""
    kind = type("WholeSample", (Dataset,), {
        "__module__": __name__, "__len__": lambda self: 24, "__getitem__": make, **extra,
    })  # fmt: skip
    return kind()


# ---- whole samples


def test_the_second_pass_makes_no_sample() -> None:
    made = itertools.count()

    def make(self, index):
        next(made)  # nobody sees that it moves
        return torch.full((50,), index / 3), index

    cache = Cache(BUDGET)
    source = cache.offer(DataLoader(whole(make), batch_size=8))
    for start in range(0, 24, 8):
        source.fetch(range(start, start + 8))
    already = next(made)
    assert already >= 24
    source.fetch(range(24))
    assert next(made) == already + 1
    assert cache.counts()["entries"] == 24


@pytest.mark.parametrize(
    "make",
    [
        lambda self, index: {"x": np.arange(30).reshape(5, 6).T * index, "name": f"n{index}"},
        lambda self, index: [np.float32(index), (index, None.__class__ is None), b"x" * index],
        lambda self, index: (torch.arange(6).view(2, 3).t(), float("nan"), index == 3),
        lambda self, index: torch.full((2, 3), index, dtype=torch.bfloat16)[:, :2],
    ],
)
def test_samples_of_many_kinds_are_torchs_own(make) -> None:
    cache, source = passes(whole(make), collate_fn=list)
    assert source._memo.off == ""
    assert cache.counts()["entries"] == 24


def test_what_the_loop_writes_into_a_sample_is_not_kept() -> None:
    dataset = whole(lambda self, index: torch.full((50,), float(index)))
    cache = Cache(BUDGET)
    source = cache.offer(DataLoader(dataset, batch_size=4, collate_fn=list))
    for _ in range(3):
        for sample, index in zip(source.fetch([5, 6, 7, 5]), (5, 6, 7, 5), strict=True):
            assert sample.eq(index).all()
            sample.zero_()


def test_what_the_loop_writes_into_a_batch_is_not_kept() -> None:
    dataset = whole(lambda self, index: {"x": np.full(50, index), "y": [torch.full((2, 3), index)]})
    source = Cache(BUDGET).offer(DataLoader(dataset, batch_size=4))
    for _ in range(4):
        batch = source.fetch([5, 6, 5])
        for tensor in (batch["x"], batch["y"][0]):
            assert tensor.reshape(3, -1)[:, 0].tolist() == [5, 6, 5]
            tensor.zero_()
        batch["y"].clear()


def test_kept_samples_are_collated_without_being_copied_first(monkeypatch) -> None:
    dataset = whole(lambda self, index: (torch.arange(6.0).view(2, 3).t() * index, index))
    loader = DataLoader(dataset, batch_size=4)
    source = Cache(BUDGET).offer(loader)
    for _ in range(2):
        source.fetch(range(4))
    monkeypatch.setattr(memo.Memo, "fetch", None)
    assert difference(source.fetch(range(4)), Stock(loader).fetch(range(4))) == ""


def test_samples_are_copied_for_a_collation_that_was_taught_to_pass_them_on(monkeypatch) -> None:
    taught = {torch.Tensor: lambda batch, *, collate_fn_map=None: batch}
    monkeypatch.setattr(collate, "default_collate_fn_map", taught)
    source = Cache(BUDGET).offer(DataLoader(whole(lambda self, index: torch.full((9,), index))))
    for _ in range(3):
        (sample,) = source.fetch([7])
        assert sample.eq(7).all()
        sample.zero_()


def test_a_kept_sample_is_made_again_now_and_then(monkeypatch) -> None:
    monkeypatch.setattr(memo, "_SPOT_EVERY", 10)
    hidden = itertools.repeat(1)

    def make(self, index):
        return torch.full((50,), next(self.hidden) + index)

    dataset = whole(make, hidden=property(lambda self: hidden))
    source = Cache(BUDGET).offer(DataLoader(dataset, batch_size=4))
    for _ in range(2):
        source.fetch([0, 1, 2, 3])
    hidden = itertools.repeat(2)
    for _ in range(3):
        batch = source.fetch([0, 1, 2, 3])
    assert source._memo.off == "a sample differs from what it was"
    assert 5 in batch


def test_a_change_of_the_dataset_is_seen_where_all_samples_are_kept() -> None:
    dataset = whole(lambda self, index: torch.full((50,), index * self.scale), scale=1)
    dataset.scale = 2
    source = Cache(BUDGET).offer(DataLoader(dataset, batch_size=4))
    for _ in range(3):
        source.fetch([1, 2])
    dataset.scale = 3
    assert source.fetch([1, 2])[:, 0].tolist() == [3, 6]


@pytest.mark.parametrize("draw", [
    lambda: torch.rand(()).item(), random.random, lambda: float(np.random.rand()),
])  # fmt: skip
def test_a_sample_that_draws_is_never_kept(draw) -> None:
    dataset = whole(lambda self, index: torch.full((50,), draw()))
    cache, source = passes(dataset)
    assert kept(cache, source) == 0


def test_a_dataset_that_draws_at_one_index_only_draws_there_in_every_pass() -> None:
    dataset = whole(lambda self, index: torch.full((50,), random.random() if index == 7 else 1.0))
    cache, source = passes(dataset)
    assert cache.counts()["entries"] == 23
    assert source._memo.off == ""


@pytest.mark.parametrize("draw", [
    lambda: torch.rand(()).item(), random.random, np.random.rand, np.random.randn,
])  # fmt: skip
def test_samples_that_draw_after_a_batch_that_did_not_are_never_kept(draw) -> None:
    """NumPy makes two normal numbers at once: the second sample draws what the first has left."""
    dataset = whole(
        lambda self, index: torch.full((50,), draw() if index in (17, 22) else index + 0.5)
    )
    cache, _ = passes(dataset, count=1)
    assert cache.counts()["entries"] == 16
    cache, source = passes(dataset, count=3, cache=cache)
    assert cache.counts()["entries"] == 22
    assert source._memo.off == ""


def test_generators_are_read_twice_in_a_batch_that_draws_nothing(monkeypatch) -> None:
    source = Cache(BUDGET).offer(DataLoader(whole(lambda self, index: torch.ones(50))))
    reads, read = [], random_states.read
    monkeypatch.setattr(random_states, "read", lambda: reads.append(0) or read())
    counts = []
    for start in range(0, 24, BATCH):
        source.fetch(range(start, start + BATCH))
        counts.append(len(reads))
        reads.clear()
    assert counts[0] > 2 * BATCH
    assert counts[1:] == [2, 2]


def test_a_dataset_that_draws_from_a_generator_of_its_own_is_not_kept() -> None:
    def make(self, index):
        return torch.full((50,), self.generator.random())

    twins = whole(make), whole(make)
    for dataset in twins:
        dataset.generator = random.Random(3)
    cache, source = passes(twins[0], twin=twins[1])
    assert kept(cache, source) == 0
    assert twins[0].generator.getstate() == twins[1].generator.getstate()


def test_a_dataset_that_changes_itself_is_not_kept_and_not_asked_twice() -> None:
    def make(self, index):
        self.seen = getattr(self, "seen", 0) + 1
        return torch.full((50,), float(self.seen))

    twins = whole(make), whole(make)
    cache, source = passes(twins[0], twin=twins[1])
    assert kept(cache, source) == 0
    assert twins[0].seen == twins[1].seen == 24


def test_says_in_the_next_pass_why_it_gave_up() -> None:
    def make(self, index):
        self.seen = getattr(self, "seen", 0) + 1
        return self.seen

    _, why = passes(whole(make), twin=whole(make))
    assert why == "its samples change the dataset"


def test_workers_that_stay_keep_their_source_when_it_gave_up() -> None:
    dataset = whole(lambda self, index: {1, index})
    cache, why = passes(dataset, collate_fn=list, count=5)
    assert isinstance(why, str)
    loader = DataLoader(dataset, collate_fn=list, num_workers=1, persistent_workers=True)
    source = cache.offer(loader)
    assert source.fetch([3]) == [{1, 3}]
    assert source._memo.off == why


def test_samples_that_are_the_datasets_own_memory_are_not_kept() -> None:
    rows = torch.rand(24, 50)
    dataset = whole(lambda self, index: rows[index])
    _, why = passes(dataset)
    assert why == "its samples are the dataset's own memory"


def test_samples_that_hold_a_stranger_are_made_anew() -> None:
    dataset = whole(lambda self, index: {1, index})
    cache, why = passes(dataset, collate_fn=list, count=5)
    assert kept(cache, why) == 0
    assert why == "a sample holds an object of type builtins.set"


def test_samples_as_cheap_as_their_copy_are_not_kept(monkeypatch) -> None:
    monkeypatch.setattr(memo, "_OVERHEAD_NS", 10**9)
    _, why = passes(whole(lambda self, index: index), collate_fn=list)
    assert why == "a sample is made as fast as it is copied"


def test_samples_that_cost_more_than_to_be_lent_are_kept(monkeypatch) -> None:
    monkeypatch.setattr(memo, "_OVERHEAD_NS", 10**9)
    monkeypatch.setattr(memo, "_LENT_NS", 0)
    cache, source = passes(whole(lambda self, index: torch.full((50,), index)))
    assert kept(cache, source) == 24


def helper():
    return time.time()


class Deep:
    def __call__(self, index):
        return uuid.uuid4().hex


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda self, index: time.time(), "the clock"),
        (lambda self, index: perf_counter(), "the clock"),
        (lambda self, index: helper(), "the clock"),
        (lambda self, index: [time.time() for _ in range(2)], "the clock"),
        (lambda self, index: os.urandom(3), "a source of entropy"),
        (lambda self, index: torch.utils.data.get_worker_info(), "the worker that runs it"),
        (lambda self, index: os.getpid(), "its process"),
        (lambda self, index: print(index), "the output"),
        (lambda self, index: os.path.exists("x"), "which files there are"),
        (lambda self, index: __import__("secrets") and index, None),
    ],
)
def test_code_that_names_a_clock_or_the_like_is_refused_with_the_reason(make, said) -> None:
    found = Cache(BUDGET).offer(DataLoader(whole(make)))
    if said is None:  # made at run time: two makings differ, or nothing does
        assert not isinstance(found, str)
    else:
        assert said in found


def test_code_in_a_member_is_looked_into() -> None:
    dataset = whole(lambda self, index: self.deep(index))
    dataset.deep = Deep()
    assert "entropy" in Cache(BUDGET).offer(DataLoader(dataset))


class Announced(Dataset):
    """Looks for files and prints while it is made; its clock is five calls away from an item."""

    def __init__(self):
        if not os.path.exists("/nowhere"):
            print(f"Loaded {self.__len__()} samples.")
        self._read_data()

    def _read_data(self):
        self.read_s = str(time.time())
        self.deep = Deep()

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((50,), float(index))

    def one(self):
        return self.two()

    def two(self):
        return self.three()

    def three(self):
        return self.four()

    def four(self):
        return self.five()

    def five(self):
        return time.time()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Announced.__getitem__, None),
        (lambda self, index: self.one(), "the clock"),
        (lambda self, index: self._read_data(), "the clock"),
        (lambda self, index: self.deep(index), "entropy"),
        (lambda self, index: getattr(self, "one" if index else "two")(), "its code names"),
        (lambda self, index: type(self)()[index], "its code names"),
    ],
    ids=["made", "named", "of making", "attribute", "by any name", "made again"],
)
def test_only_what_an_item_may_run_is_looked_into(make, said) -> None:
    kind = type("Announced", (Announced,), {"__module__": __name__, "__getitem__": make})
    found = Cache(BUDGET).offer(DataLoader(kind()))
    if said is None:
        assert not isinstance(found, str)
    else:
        assert said in found


class Timed(torch.nn.Module):
    """A transform whose `forward` only torch names."""

    def forward(self, value):
        return value * time.time()


class Inherits(Subset):
    """A part of a dataset, whose items torch reads by attributes that only torch names."""

    def named(self):
        return 0


def test_what_code_of_a_library_may_call_by_name_is_looked_into() -> None:
    dataset = whole(lambda self, index: self.transform(index))
    dataset.transform = Timed()
    assert PurityAnalysis(dataset).why_not.endswith("the clock")
    part = Inherits(whole(lambda self, index: time.time()), range(8))
    assert PurityAnalysis(part).why_not.endswith("the clock")


def test_a_special_method_that_making_calls_too_is_looked_into() -> None:
    kind = type("Announced", (Announced,), {
        "__module__": __name__, "__len__": lambda self: 24 + 0 * int(time.time()),
    })  # fmt: skip
    assert "the clock" in Cache(BUDGET).offer(DataLoader(kind()))


def test_readers_that_no_hook_sees_are_refused(monkeypatch) -> None:
    reader = types.ModuleType("h5py")
    monkeypatch.setitem(globals(), "h5py", reader)
    dataset = whole(eval("lambda self, index: h5py.File(index)", globals()))
    assert "h5py may read files" in Cache(BUDGET).offer(DataLoader(dataset))


def test_a_file_of_the_script_may_be_named_like_a_library_that_reads(monkeypatch, tmp_path) -> None:
    (tmp_path / "datasets.py").write_text(
        "import torch\n"
        "def made(index):\n    return torch.ones(1 << 16) * index\n"
        "class Rows(torch.utils.data.Dataset):\n"
        "    datasets = h5py = None\n"
        "    def __len__(self):\n        return 24\n"
        "    def __getitem__(self, index):\n"
        "        import datasets\n"
        "        return datasets.made(index) if self.datasets is self.h5py else None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rows = importlib.import_module("datasets").Rows()
    monkeypatch.setitem(sys.modules, "datasets", sys.modules.pop("datasets"))
    assert not isinstance(Cache(BUDGET).offer(DataLoader(rows)), str)
    del sys.modules["datasets"]
    assert "datasets may read files" in Cache(BUDGET).offer(DataLoader(rows)), "another may come"


def test_rows_of_a_table_of_pandas_are_kept_and_its_readers_are_refused() -> None:
    class Rows(Dataset):
        def __init__(self):
            self.table = pandas.DataFrame({"name": ["a", "b"] * 12, "x": np.arange(24.0)})

        def __len__(self):
            return len(self.table)

        def __getitem__(self, index):
            row = self.table.iloc[index]
            return torch.tensor(row.drop(self.names[0]).values.astype(np.float32))

    cache, dataset = Cache(BUDGET), Rows()
    dataset.names = pandas.Index(["name", "x"])  # pandas may hold texts in arrays of pyarrow
    vars(dataset.names)["_pa_array"] = type("ChunkedArray", (), {"__module__": "pyarrow.lib"})()
    loader = DataLoader(dataset, batch_size=8)
    for _ in range(2):
        source = cache.offer(loader)
        for start in range(0, 24, 8):
            source.fetch(range(start, start + 8))
        sys.modules["a module that something imports meanwhile"] = types.ModuleType("late")
    del sys.modules["a module that something imports meanwhile"]
    assert cache.offer(loader)._memo is source._memo
    assert cache.counts()["entries"] == 24
    parquet = whole(lambda self, index: pandas.read_parquet(self.paths[index]))
    assert "read_parquet: a sample may depend on files" in Cache(BUDGET).offer(DataLoader(parquet))


def test_a_file_that_is_kept_open_and_memory_shared_with_others_are_refused(tmp_path) -> None:
    dataset = whole(lambda self, index: self.held)
    with open(tmp_path / "a", "w") as dataset.held:
        assert "keeps a file open" in Cache(BUDGET).offer(DataLoader(dataset))
    dataset.held = torch.ones(2).share_memory_()
    assert "shared memory" in Cache(BUDGET).offer(DataLoader(dataset))


# ---- files


def write(path, number):
    path.write_bytes(b"%d" % number)


@pytest.fixture
def files(tmp_path):
    for index in range(24):
        write(tmp_path / str(index), index)
    time.sleep(0.06)  # a file that changed just now may change again without another stamp

    def make(self, index):
        with open(f"{self.folder}/{index}", "rb") as file:
            return int(file.read())

    dataset = whole(make)
    dataset.folder = str(tmp_path)
    return dataset, tmp_path


def test_a_file_that_is_replaced_is_read_anew(files) -> None:
    dataset, folder = files

    def at(number):
        if number:
            write(folder / "5", 100 * number)
            (folder / "new").write_bytes(b"%d" % (7000 * number))
            os.replace(folder / "new", folder / "6")
            time.sleep(0.06)

    cache, _ = passes(dataset, at=at, count=4)
    assert cache.counts()["entries"] == 24


def test_a_sample_whose_file_was_replaced_is_kept_anew(files) -> None:
    dataset, folder = files
    made, make = itertools.count(), type(dataset).__getitem__
    type(dataset).__getitem__ = lambda self, index: (next(made), make(self, index))[1]
    source = Cache(BUDGET).offer(DataLoader(dataset, batch_size=2))
    source.fetch([5, 6])
    write(folder / "5", 100)
    time.sleep(0.06)
    assert source.fetch([5, 6]).tolist() == [100, 6]
    already = next(made)
    assert source.fetch([5, 6]).tolist() == [100, 6]
    assert next(made) == already + 1


def test_a_file_that_is_written_in_the_same_tick_is_not_trusted(files, monkeypatch) -> None:
    dataset, folder = files
    began_ns = time.time_ns()

    def soon_after():
        """The time 40 ms after the last write, however long the machine takes to come here."""
        return max(began_ns, (folder / "5").stat().st_mtime_ns + 40_000_000)

    monkeypatch.setattr(time, "time_ns", soon_after)
    cache, _ = passes(dataset, at=lambda number: write(folder / "5", number), count=4)
    assert cache.counts()["entries"] == 23


def test_a_file_that_is_gone_raises_as_ever(files) -> None:
    dataset, folder = files
    _cache, source = passes(dataset)
    os.unlink(folder / "9")
    with pytest.raises(FileNotFoundError):
        source.fetch([9])
    assert source.fetch([8]).tolist() == [8]


def test_samples_that_write_files_are_not_kept(tmp_path) -> None:
    def make(self, index):
        with open(tmp_path / "log", "a") as log:
            log.write("x")
        return index

    cache, source = passes(whole(make))
    assert kept(cache, source) == 0
    assert set((tmp_path / "log").read_text()) == {"x"}


# ---- the dataset changes


def test_a_dataset_that_is_changed_between_passes_loses_what_was_kept() -> None:
    dataset = whole(lambda self, index: torch.full((50,), float(index * self.scale)))
    dataset.scale = 1

    def at(number):
        dataset.scale = 1 if number < 2 else 5

    cache, _ = passes(dataset, at=at, count=4)
    assert cache.counts()["entries"] == 24


def test_a_dataset_that_is_changed_in_the_middle_of_a_pass_is_read_live() -> None:
    dataset = whole(lambda self, index: torch.full((50,), float(index * self.scale)))
    dataset.scale = 1
    source = Cache(BUDGET).offer(DataLoader(dataset, batch_size=2))
    assert source.fetch([1, 2])[:, 0].tolist() == [1, 2]
    dataset.scale = 5
    assert source.fetch([1, 2])[:, 0].tolist() == [5, 10]
    assert source._memo.off == "the dataset changes while it is read"


def test_what_the_code_reads_from_outside_counts_as_the_dataset(monkeypatch) -> None:
    def make(self, index):
        return torch.full((50,), float(index * EPOCH + LIMITS[0] + self.shift))

    dataset = whole(make, shift=0)

    def at(number):
        monkeypatch.setitem(globals(), "EPOCH", 3 + (number > 1))
        LIMITS[0] = number // 3
        type(dataset).shift = number // 4

    cache, source = passes(dataset, at=at, count=3)
    assert not isinstance(source, str)
    _, why = passes(dataset, at=at, count=8, cache=cache)
    assert why == "the dataset changes from pass to pass"


class Part:
    def __init__(self, inside):
        self.inside = inside


def test_a_change_that_hides_deep_in_the_dataset_is_seen_between_passes() -> None:
    def make(self, index):
        return torch.full((50,), float(index * self.parts[0].inside.inside.inside[0]))

    dataset = whole(make)
    dataset.parts = (Part(Part(Part([1]))),)

    def at(number):
        dataset.parts[0].inside.inside.inside[0] = 1 if number < 2 else 5

    cache, _ = passes(dataset, at=at, count=4)
    assert cache.counts()["entries"] == 24


def test_a_dataset_that_takes_too_long_to_look_at_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(cached, "_LOOK_BYTES", 1000)
    dataset = whole(lambda self, index: self.rows[index].clone())
    dataset.rows = torch.rand(24, 50)
    assert "takes too long" in Cache(BUDGET).offer(DataLoader(dataset))


# ---- which loaders


def test_loaders_that_it_cannot_serve_are_refused_with_the_reason() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            yield from ()

    rows = TensorDataset(torch.ones(3))
    batches = whole(lambda self, index: index, __getitems__=lambda self, indices: indices)
    offer = Cache(BUDGET).offer
    assert "iterable" in offer(DataLoader(Stream()))
    assert "whole batches" in offer(DataLoader(whole(lambda self, index: index), batch_size=None))
    assert "whole batches" in offer(DataLoader(batches))
    assert "memory already" in offer(DataLoader(rows))
    assert "memory already" in offer(DataLoader(Subset(rows, [0])))


def test_subsets_of_a_dataset_share_what_is_kept() -> None:
    dataset = whole(lambda self, index: torch.full((50,), float(index)))
    cache = Cache(BUDGET)
    passes(Subset(dataset, range(16)), cache=cache)
    passes(Subset(Subset(dataset, torch.arange(24).tolist()), range(8, 24)), cache=cache)
    assert cache.counts()["entries"] == 24


def test_indices_that_are_no_plain_integers_are_not_kept() -> None:
    dataset = whole(lambda self, index: torch.full((50,), float(index)))
    cache, source = passes(Subset(dataset, torch.arange(16)))
    assert kept(cache, source) == 0


def test_a_budget_that_is_spent_keeps_what_it_has() -> None:
    dataset = whole(lambda self, index: torch.full((5000,), float(index)))
    cache, source = passes(dataset, cache=Cache(1 << 17))
    assert 1 <= cache.counts()["entries"] < 24
    assert source._memo.off == ""


def test_memory_goes_when_the_cache_goes() -> None:
    cache, source = passes(whole(lambda self, index: torch.full((50,), float(index))))
    fd = source._memo.store._fd
    del cache, source
    gc.collect()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_what_draws_while_it_is_warmed_is_not_kept() -> None:
    dataset = whole(lambda self, index: torch.full((50,), random.random() if index == 17 else 1.0))
    cache = Cache(BUDGET)
    source = cache.offer(DataLoader(dataset, batch_size=BATCH))
    for start in range(0, 24, BATCH):
        assert source.warm(range(start, start + BATCH)) == BATCH
    assert cache.counts()["entries"] == 16
    assert source.kept_ratio < 0.7
    assert source.warm(range(16, 24)) == BATCH
    assert cache.counts()["entries"] == 23


def test_warming_makes_samples_ahead_and_moves_no_generator() -> None:
    dataset = whole(lambda self, index: torch.full((50,), random.random() if index == 2 else 1.0))
    cache = Cache(BUDGET)
    source = cache.offer(DataLoader(dataset, batch_size=4))
    before = random_states.read()
    for count in (0, 7):  # of the first batch that draws nothing is kept
        assert source.warm(range(8)) == 8
        assert random_states.read() == before
        assert cache.counts()["entries"] == count
    passes(dataset, cache=cache)


def test_warming_lets_generators_of_the_dataset_be() -> None:
    dataset = whole(lambda self, index: self.generator.random())
    dataset.generator = random.Random(3)
    before = dataset.generator.getstate()
    assert Cache(BUDGET).offer(DataLoader(dataset)).warm(range(8)) == 0
    assert dataset.generator.getstate() == before


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, samples):
        self.calls += 1
        return self.calls, samples


class Owner(Dataset):
    def __init__(self):
        self.generator, self.seen, self.table = random.Random(3), 0, None

    def __len__(self):
        return 48


class Drawing(Owner):
    def __getitem__(self, index):
        return torch.full((50,), self.generator.random())


class Stepping(Owner):
    def __getitem__(self, index):
        self.seen += 1
        return torch.full((50,), float(self.seen))


class Opening(Owner):
    def __getitem__(self, index):
        self.table = self.table or [*range(48)]
        return torch.full((50,), float(self.table[index]))


def noting(whys):
    return lambda why, is_wrong: whys.append(why)


@pytest.mark.parametrize(
    ("kind", "collate", "keeps"),
    [
        (Drawing, lambda: None, False),
        (Stepping, lambda: None, False),
        (Opening, Counting, False),
        (Opening, lambda: None, True),
    ],
)
def test_what_items_move_is_moved_once_while_the_cache_is_tried(kind, collate, keeps) -> None:
    ours, stocks = (DataLoader(kind(), batch_size=8, collate_fn=collate()) for _ in range(2))
    cache, whys = Cache(BUDGET), []
    checked = Checked(cache.offer(ours), Stock(ours), on_end=noting(whys))
    stock = Stock(stocks)
    for number in range(12):
        indices = [(8 * number + i) % 48 for i in range(8)]
        assert difference(checked.fetch(indices), stock.fetch(indices)) == ""
    assert ours.dataset.generator.getstate() == stocks.dataset.generator.getstate()
    assert ours.dataset.seen == stocks.dataset.seen
    assert bool(whys) is not keeps
    assert (cache.counts()["entries"] > 0) is keeps


class Apart(Owner):
    def __getitem__(self, index):
        return None if index % 2 else torch.full((50,), float(index))


def without_none(samples):
    return torch.stack([sample for sample in samples if sample is not None])


def in_fours(samples):
    return torch.stack([s for s in samples if s is not None]).view(2, 2, -1)


@pytest.mark.parametrize("collate", [without_none, in_fours])
def test_a_collate_function_that_asks_for_more_than_two_samples_is_given_all(collate) -> None:
    ours, stocks = (DataLoader(Apart(), batch_size=8, collate_fn=collate) for _ in range(2))
    whys, stock = [], Stock(stocks)
    checked = Checked(Cache(BUDGET).offer(ours), Stock(ours), on_end=noting(whys))
    for number in range(20):
        even = [(8 * number + 2 * i) % 48 for i in range(4)]
        indices = [47, *even, 47] if collate is without_none else [*even, *[1] * 4]
        assert difference(checked.fetch(indices), stock.fetch(indices)) == ""
    assert whys == []


def test_a_dataset_that_the_script_is_done_with_is_gone() -> None:
    cache, gone = Cache(BUDGET), []
    for _ in range(3):
        loader = DataLoader(Apart(), batch_size=8, collate_fn=without_none)
        source = cache.offer(loader)
        source.fetch([0, 2, 4])
        gone.append(weakref.ref(loader.dataset))
    del loader, source
    gc.collect()
    assert [dataset() for dataset in gone] == [None] * 3
    assert not cache._memos


def test_a_record_inside_another_is_a_part_of_it(tmp_path) -> None:
    outer, kept = tmp_path / "outer", tmp_path / "kept"
    for path in (outer, kept):
        path.write_text("x")
        os.utime(path, (1, 1))
    whole = file_access.record()
    outer.read_text()
    inside = file_access.record()
    kept.read_text()
    os.listdir(tmp_path)
    file_access.stop()
    assert set(inside.stamps) == {str(kept), str(tmp_path)}
    outer.read_text()
    file_access.read([file_access.stamp(__file__)])
    file_access.stop()
    assert set(whole.stamps) == {str(outer), str(kept), str(tmp_path), __file__}
    kept.read_text()
    file_access.stop()
    assert len(whole.stamps) == 4


# ---- processes


def in_child(act):
    """Run `act` in a fork of this process, where it must not raise."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            act()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Squares(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((50,), float(index * index))


def sought_in_the_store(monkeypatch):
    sought = []
    get = store.Store.get
    monkeypatch.setattr(store.Store, "get", lambda self, key: sought.append(key) or get(self, key))
    return sought


def test_what_a_process_has_made_itself_is_not_looked_for(monkeypatch) -> None:
    source = Cache(BUDGET).offer(DataLoader(Squares(), batch_size=4))
    source.fetch(range(24))
    sought = sought_in_the_store(monkeypatch)
    for _ in range(3):
        assert source.fetch(range(24))[:, 0].tolist() == [index * index for index in range(24)]
    assert sought == []


@pytest.mark.child
def test_what_another_process_has_made_is_looked_for_once(monkeypatch) -> None:
    source = Cache(BUDGET).offer(DataLoader(Squares(), batch_size=4))
    in_child(lambda: source.fetch(range(24)))
    sought = sought_in_the_store(monkeypatch)
    for _ in range(4):
        assert source.fetch(range(24))[:, 0].tolist() == [index * index for index in range(24)]
    assert len(sought) == 24


@pytest.mark.child
def test_processes_that_are_forked_later_know_what_was_made(monkeypatch) -> None:
    source = Cache(BUDGET).offer(DataLoader(Squares(), batch_size=4))
    source.fetch(range(24))
    monkeypatch.setattr(Squares, "__getitem__", None)

    def use():
        assert source.fetch([2, 20])[:, 0].tolist() == [4, 400]

    in_child(use)


def test_samples_of_a_batch_take_no_more_memory_than_their_numbers() -> None:
    cache = Cache(BUDGET)
    source = cache.offer(DataLoader(Squares(), batch_size=8))
    source.fetch(range(16))
    assert cache.counts() == {"entries": 16, "bytes": 16 * 50 * 4}


def test_a_change_is_seen_before_the_first_kept_sample_of_a_batch_is_used() -> None:
    dataset = whole(lambda self, index: torch.full((50,), index * self.parts[0].inside), parts=None)
    dataset.parts = [Part(1)]
    source = Cache(BUDGET).offer(DataLoader(dataset, batch_size=2, collate_fn=torch.stack))
    source.fetch([1, 2])
    dataset.parts[0].inside = 5
    assert source.fetch([3, 2])[:, 0].tolist() == [15, 10]


def test_samples_of_other_forms_than_their_neighbours_are_kept_one_by_one() -> None:
    forms = [
        lambda: torch.ones(4, 5), lambda: torch.ones(5, 4).t(), lambda: torch.ones(4, 5).double(),
        lambda: torch.ones(4, 10)[:, ::2], lambda: torch.ones(4, 5, requires_grad=True),
        lambda: np.ones((4, 5)), lambda: [torch.ones(4, 5)], lambda: None,
    ]  # fmt: skip
    dataset = whole(lambda self, index: (forms[index // 3](), index))
    passes(dataset, collate_fn=list, count=3)
    passes(whole(lambda self, index: (forms[index % 2](), index)), count=3)


def test_with_the_last_dataset_the_memory_of_its_samples_goes() -> None:
    """Folds of a cross-validation each make their own."""
    cache = Cache(BUDGET)
    for _ in range(3):
        dataset = Squares()
        source = cache.offer(DataLoader(dataset, batch_size=4))
        source.fetch(range(24))
        assert cache.counts()["entries"] == 24
        del dataset, source
        gc.collect()
    assert cache.counts() == {}


def test_datasets_that_are_gone_make_room_beside_one_that_lasts() -> None:
    """Each fold makes its own to train on; all are tested on the same one, which is made once."""
    made = itertools.count()

    def make(self, index):
        if hasattr(self, "lasts"):
            next(made)  # nobody sees that it moves
        return torch.full((5000,), float(index))

    lasting, cache, counts = whole(make), Cache(1 << 20), []
    lasting.lasts = True
    for _ in range(4):
        for dataset in (lasting, whole(make)):
            source = cache.offer(DataLoader(dataset, batch_size=8))
            for start in range(0, 24, 8):
                source.fetch(list(range(start, start + 8)))
            counts.append(cache.counts()["entries"])
        del dataset, source
        gc.collect()
    assert counts == [24, 48] * 4
    assert next(made) < 24 + 8 + 5


def test_what_was_kept_of_a_dataset_before_it_was_changed_makes_room_at_once() -> None:
    dataset = whole(lambda self, index: torch.full((5000,), index * self.gain), gain=1.0)
    cache, earlier = passes(dataset, cache=Cache(600_000))
    dataset.gain = 2.0
    passes(dataset, cache=cache)
    assert cache.counts()["entries"] == 24, earlier


def test_datasets_that_live_together_share_the_budget_and_few_files() -> None:
    cache = Cache(1 << 20)
    datasets = [whole(lambda self, index: torch.full((1000,), float(index))) for _ in range(20)]
    for dataset in datasets:
        passes(dataset, cache=cache)
    assert 9 * 24 < cache.counts()["entries"] < 20 * 24
    assert cache.counts()["bytes"] < 1 << 20
    assert len(cache._stores()) == 8


@pytest.mark.child
def test_forked_workers_keep_samples_for_one_another_and_for_the_main_process(monkeypatch) -> None:
    cache = Cache(BUDGET)
    source = cache.offer(DataLoader(Squares(), batch_size=4))
    for part in range(2):
        mine = list(range(12 * part, 12 * part + 12))

        def make(mine=mine):
            assert source.fetch(mine)[:, 0].tolist() == [i * i for i in mine]

        in_child(make)
    assert cache.counts()["entries"] == 24
    monkeypatch.setattr(Squares, "__getitem__", None)
    assert source.fetch([2, 20])[:, 0].tolist() == [4, 400]


def test_a_source_that_was_pickled_uses_the_same_memory() -> None:
    cache = Cache(BUDGET)
    source = cache.offer(DataLoader(Squares(), batch_size=4))
    other = pickle.loads(pickle.dumps(source))
    assert other.fetch([1, 2, 3])[:, 0].tolist() == [1, 4, 9]
    assert cache.counts()["entries"] == 3
    assert source.fetch([1, 2, 3])[:, 0].tolist() == [1, 4, 9]
    assert source._memo._use_count == 3


# ---- folders of images

STAND_IN = """
class DatasetFolder:
    def __init__(self, samples, loader, transform=None, target_transform=None):
        self.samples, self.loader = samples, loader
        self.transform, self.target_transform = transform, target_transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, target = self.samples[index]
        sample = self.loader(path)
        if self.transform is not None:
            sample = self.transform(sample)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return sample, target


def pil_loader(path):
    from PIL import Image

    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


default_loader = pil_loader
"""

STAND_IN_TRANSFORMS = """
import torch


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, sample):
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class Resize:
    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        return image.resize((self.size, self.size))


class ToTensor:
    def __call__(self, image):
        import numpy

        raw = torch.from_numpy(numpy.array(image)).permute(2, 0, 1).contiguous()
        return raw.to(torch.get_default_dtype()).div(255)


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def __call__(self, tensor):
        return (tensor - self.mean[0]) / self.std[0]


class RandomHorizontalFlip:
    def __call__(self, sample):
        if torch.rand(1) >= 0.5:
            return sample
        return sample.flip(-1) if hasattr(sample, "flip") else sample.transpose(0)
"""


def module_of(name, source, **more):
    module = types.ModuleType(name)
    exec(source, module.__dict__)
    vars(module).update(more)
    return module


@pytest.fixture
def vision(monkeypatch):
    """torchvision's own folder and transforms, or small ones that stand in for them."""
    try:
        from torchvision import transforms
        from torchvision.datasets import folder
    except Exception:  # not installed, or not for this torch
        home = module_of("torchvision", "", get_image_backend=lambda: "PIL")
        folder = module_of("torchvision.datasets.folder", STAND_IN)
        transforms = module_of("torchvision.transforms", STAND_IN_TRANSFORMS)
        for module in (home, folder, transforms):
            monkeypatch.setitem(sys.modules, module.__name__, module)
    return types.SimpleNamespace(folder=folder, **vars(transforms))


@pytest.fixture
def images(vision, tmp_path):
    """Return a function that makes a folder dataset of 12 images with a transform."""
    drawn = np.random.default_rng(0)
    for index in range(12):
        pixels = drawn.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        suffix = "png" if index % 2 else "jpg"
        (tmp_path / str(index % 3)).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / str(index % 3) / f"{index}.{suffix}")
    time.sleep(0.06)

    def make(transform, target_transform=None, load=None):
        load = load or vision.folder.default_loader
        dataset = vision.folder.DatasetFolder.__new__(vision.folder.DatasetFolder)
        dataset.samples = [(str(path), int(path.parent.name)) for path in
                           sorted(tmp_path.glob("*/*.*"))]  # fmt: skip
        dataset.loader, dataset.transform = load, transform
        dataset.target_transform = target_transform
        return dataset

    return make


def test_a_folder_with_random_transforms_keeps_the_part_before_them(vision, images) -> None:
    chain = [vision.Resize(24), vision.RandomHorizontalFlip(), vision.ToTensor()]
    cache, source = passes(images(vision.Compose(chain)), count=4)
    assert cache.counts()["entries"] == 12
    assert not source.pure


def test_a_folder_without_random_transforms_keeps_all_and_is_pure(vision, images) -> None:
    chain = [vision.Resize(24), vision.ToTensor(), vision.Normalize([0.5] * 3, [0.2] * 3)]
    cache, source = passes(images(vision.Compose(chain)))
    assert source.pure
    assert cache.counts()["bytes"] > 12 * 24 * 24 * 3 * 4


def test_a_folder_whose_floats_would_not_fit_keeps_pixels(vision, images) -> None:
    chain = [vision.Resize(24), vision.ToTensor()]
    cache, source = passes(images(vision.Compose(chain)), cache=Cache(1 << 16))
    assert not source.pure
    assert cache.counts()["entries"] == 12


@pytest.mark.parametrize("collate", [None, list])
def test_a_folder_without_any_transform_gives_images(images, collate) -> None:
    cache, source = passes(images(None, lambda target: -target), collate_fn=collate or list)
    assert cache.counts()["entries"] == 12
    assert not source.pure


def test_what_a_transform_writes_into_an_image_is_not_kept(vision, images) -> None:
    def scribble(image):
        image.putpixel((0, 0), (random.randrange(255), 0, 0))
        image.info["seen"] = image.info.get("seen", 0) + 1
        return np.array(image), image.info["seen"]

    cache, source = passes(images(vision.Compose([vision.Resize(24), scribble])), count=4)
    assert not source.pure
    assert cache.counts()["entries"] == 12


def test_a_target_transform_draws_anew_each_time(images, vision) -> None:
    drawn = images(vision.ToTensor(), lambda target: target + torch.rand(1).item())
    cache, source = passes(drawn)
    assert not source.pure
    assert cache.counts()["entries"] == 12


def test_a_transform_that_is_changed_between_batches_acts_at_once(vision, images) -> None:
    resize = vision.Resize(24)
    dataset = images(vision.Compose([resize, vision.ToTensor()]))

    def at(number):
        resize.size = (24, 32, 24)[number]

    cache, _ = passes(dataset, at=at)
    assert cache.counts()["entries"] == 24


def test_a_transform_that_somebody_derived_runs_live(vision, images) -> None:
    class Resize(vision.Resize):
        def __call__(self, image):
            return super().__call__(image).rotate(random.randrange(360))

    cache, source = passes(images(vision.Compose([Resize(24), vision.ToTensor()])))
    assert cache.counts()["entries"] == 12
    assert not source.pure


def test_an_image_that_is_replaced_is_decoded_anew(vision, images) -> None:
    dataset = images(vision.ToTensor())

    def at(number):
        path = dataset.samples[3][0]
        image = Image.new("RGB", (50, 40), (number * 20, 0, 0))
        image.save(path)
        time.sleep(0.06)

    cache, _ = passes(dataset, at=at)
    assert cache.counts()["entries"] == 12


def test_a_loader_function_of_the_scripts_own_is_watched(vision, images) -> None:
    def load(path):
        with open(path, "rb") as file:
            return Image.open(file).convert("L").resize((20, 20))

    def draw(path):
        return load(path).rotate(random.randrange(90))

    cache, _ = passes(images(vision.RandomHorizontalFlip(), load=load), collate_fn=list)
    assert cache.counts()["entries"] == 12
    cache, source = passes(images(vision.RandomHorizontalFlip(), load=draw), collate_fn=list)
    assert kept(cache, source) == 0


def test_what_a_transform_writes_into_a_loaded_tensor_is_not_kept(vision, images) -> None:
    def load(path):
        with open(path, "rb") as file:
            return torch.frombuffer(bytearray(file.read(256)), dtype=torch.uint8).float()

    cache, source = passes(images(lambda tensor: tensor.sub_(100).div_(7), load=load))
    assert kept(cache, source) == 12


def test_a_folder_with_a_getitem_of_its_own_is_treated_as_unknown(vision, images) -> None:
    dataset = images(vision.ToTensor())

    class Own(vision.folder.DatasetFolder):
        def __getitem__(self, index):
            return super().__getitem__(index)[0]

    dataset.__class__ = Own
    _, source = passes(dataset)
    assert type(source._recipe).__name__ == "WholeSample"


PROGRAM = r"""
from hasten.loader.cache import memo
from hasten.loader.cache.cached import Cache

memo._OVERHEAD_NS, memo._LOOK_SHARE_RATIO = -(10**12), 1e9


class Costly(Numbers):
    def __getitem__(self, i):
        return torch.full((50,), float(i) / 3), i


class Rarely(Numbers):
    def __getitem__(self, i):
        return torch.full((50,), torch.rand(()).item() if i == 7 else i / 3)


class Always(Numbers):
    def __getitem__(self, i):
        return torch.full((50,), torch.rand(()).item() + i)


def digest(batch):
    parts = batch if isinstance(batch, (list, tuple)) else [batch]
    return [hashlib.sha256(part.numpy().tobytes()).hexdigest()[:8] for part in parts]


def run(kind, **settings):
    alive[:] = [kind(24)]  # what is kept goes with the dataset
    loader = DataLoader(alive[0], batch_size=4, shuffle=True, **settings)
    return [[[digest(batch) for batch in loader], rng()] for _ in range(3)]


alive = []
WAYS = ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True})
CASES = [(kind, settings) for kind in (Costly, Rarely, Always) for settings in WAYS]
expected = [stock(lambda: run(kind, **settings)) for kind, settings in CASES]
for (kind, settings), before in zip(CASES, expected):
    for count in (None, 1) if settings else (None,):
        cache = Cache(1 << 26)
        take_back = engine.add(cache.offer)
        after = ours(lambda: run(kind, **settings), count)
        take_back()
        name = f"{kind.__name__} {settings} {count}"
        facts[name] = [before == after, cache.counts().get("entries", 0)]
"""


@pytest.mark.child
def test_loaders_with_and_without_workers_give_torchs_batches_and_draws(loaders) -> None:
    facts = loaders(PROGRAM)
    assert {name for name, (same, _) in facts.items() if not same} == set()
    expected = {"Costly": {24}, "Rarely": {23}, "Always": {0, 1}}  # the reason is an entry
    for kind, counts in expected.items():
        assert {count for name, (_, count) in facts.items() if name.startswith(kind)} <= counts


KEPT = r"""
from hasten.loader.cache import memo
from hasten.loader.cache.cached import Cache

memo._OVERHEAD_NS, memo._LOOK_SHARE_RATIO = -(10**12), 1e9


class Costly(Numbers):
    def __getitem__(self, i):
        return torch.full((50,), float(i) / 3), i


def passes():
    return [[(digest(batch), time.sleep(0.015)) for batch in loader] for _ in range(3)]


torch.set_num_threads(2)
loader = DataLoader(Costly(48), batch_size=4)
plain = passes()
cache = Cache(1 << 26)
undos = [engine.add(cache.offer), engine.want(2)]
facts["same"] = passes() == plain
used, use = [], memo.Memo._use
memo.Memo._use = lambda self, build, make: used.append(1) or use(self, build, make)
lend = memo.Memo.lend
memo.Memo.lend = lambda self, names: (lent := lend(self, names)) and used.extend(names) or lent
passes()
facts["entries"] = cache.counts()["entries"]
facts["used"] = len(used)
facts["home"] = engine._states_by_loader[loader].added.pace.is_home
facts["children"] = len(multiprocessing.active_children())
for undo in undos:
    undo()
"""


@pytest.mark.child
def test_workers_fill_the_cache_and_then_the_main_process_copies(loaders) -> None:
    digest = PROGRAM[PROGRAM.index("def digest") : PROGRAM.index("def run")]
    facts = loaders("import multiprocessing\n" + digest + KEPT)
    assert facts.pop("used") >= 140
    assert facts == {"same": True, "entries": 48, "home": True, "children": 0}
