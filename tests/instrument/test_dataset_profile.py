"""What the look at the making of batches makes of stacks, items and starts."""

import importlib
import json
import os
import sys
import threading
import time
import types
import warnings

import pytest
import torch
from torch.utils.data import Dataset

from hasten.instrument.fetches import FetchClock
from hasten.instrument.item_profile import ItemProfile, computes
from hasten.instrument.repeats import Repeats, digest_of, merge
from hasten.instrument.stack_sampler import ThreadSampler
from hasten.instrument.starts import StartClock


def frame_here():
    return sys._getframe(1)


class Rows(Dataset):
    def __init__(self, transform):
        self.table = [0]
        self.transform = transform

    def __getitem__(self, index):
        row = self.table[index]
        return self.transform(row)


def test_code_below_a_transform_of_the_dataset_is_a_transform() -> None:
    def transform(row):
        return frame_here()

    data = Rows(transform)
    kind, place = ItemProfile(data).classify(data[0])
    assert kind == "transforms"
    assert place[0] == __file__


def test_the_transforms_of_a_dataset_inside_another_are_found() -> None:
    def transform(row):
        return frame_here()

    data = Rows(transform)
    subset = torch.utils.data.Subset(data, [0])
    assert ItemProfile(subset).classify(subset.dataset[0])[0] == "transforms"


def test_a_line_that_computes_is_the_users_own_work() -> None:
    def make():
        return frame_here()

    assert ItemProfile(object()).classify(make())[0] == "own"


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("PIL.ImageFile", "decode"),
        ("PIL.JpegImagePlugin", "decode"),
        ("PIL.ImageOps", "transforms"),
        ("pandas.core.indexing", "store"),
        ("h5py._hl.dataset", "store"),
        ("torchvision.transforms.functional", "transforms"),
    ],
)
def test_frames_are_sorted_by_their_module(module, kind) -> None:
    library = types.ModuleType(module)
    code = compile("import sys\ndef read(): return sys._getframe()", "<library>", "exec")
    exec(code, library.__dict__)
    frame = library.read()
    assert ItemProfile(object()).classify(frame)[0] == kind


def test_code_in_a_file_named_like_a_library_is_the_users(monkeypatch, tmp_path) -> None:
    path = tmp_path / "tables.py"
    path.write_text("import sys\ndef read():\n    return sum(range(3)) and sys._getframe()\n")
    monkeypatch.syspath_prepend(tmp_path)
    frame = importlib.import_module("tables").read()
    monkeypatch.setitem(sys.modules, "tables", sys.modules.pop("tables"))
    assert ItemProfile(object()).classify(frame) == ("own", (str(path), 3))


def test_a_line_that_only_looks_up_computes_nothing() -> None:
    def look_up(self, index):
        return self.images[index], self.labels[index]

    def make(self, index):
        return torch.tensor(self.images[index]) / 255

    for function, found in ((look_up, False), (make, True)):
        code = function.__code__
        assert computes(code, code.co_firstlineno + 1) is found


def test_the_same_bytes_have_the_same_digest() -> None:
    one = (torch.arange(6).reshape(2, 3), {"label": 3, "name": "cat"})
    again = (torch.arange(6).reshape(3, 2).reshape(2, 3), {"label": 3, "name": "cat"})
    assert digest_of(one) == digest_of(again) is not None
    assert digest_of(one) != digest_of((torch.arange(6), {"label": 3, "name": "cat"}))
    assert digest_of(torch.ones(4, 4).t()) is not None


def test_what_has_no_bytes_has_no_digest() -> None:
    assert digest_of(object()) is None
    assert digest_of([1, object()]) is None
    assert digest_of(torch.ones(3, requires_grad=True)) is None


def test_processes_keep_the_same_few_indices() -> None:
    ahead, behind = Repeats(), Repeats()
    for index in range(5000):
        ahead.note([index], [index])
        behind.note([4999 - index], [4999 - index])
    assert ahead.told() == behind.told()
    assert len(ahead.told()) == 24
    assert merge([ahead.told(), behind.told()]) == (24, 24)
    json.dumps(ahead.told())


def test_an_item_that_changes_is_seen_within_a_process_and_between_two() -> None:
    one, other = Repeats(), Repeats()
    one.note([0, 1, 2], ["a", "b", "c"])
    other.note([0, 1], ["a", "x"])
    assert merge([one.told(), other.told()]) == (2, 1)
    one.note([2], ["y"])
    assert merge([one.told()]) == (1, 0)


class Fetcher:
    """As torch's, over a dataset whose items take some milliseconds of sleep."""

    def __init__(self):
        self.dataset, self.collate_fn = [1, 2], list

    def fetch(self, indices):
        time.sleep(0.02)
        return self.collate_fn([self.dataset[index] for index in indices])


def fetch_in_a_fork(fetch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch has threads of its own
        pid = os.fork()
    if not pid:
        try:
            fetch()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_forked_processes_take_part_in_a_look() -> None:
    clock, fetcher = FetchClock(), Fetcher()
    fetch = clock.timed(Fetcher.fetch)
    interval_s = sys.getswitchinterval()
    assert fetch(fetcher, [0, 1]) == [1, 2]
    clock.look.begin()
    assert fetch(fetcher, [1, 0]) == [2, 1]
    fetch_in_a_fork(lambda: fetch(fetcher, [0]))
    fetch_in_a_fork(lambda: fetch(fetcher, [1]))
    here, *forks = clock.look.end(id(fetcher.dataset)) or [{}]
    told = [here, *forks]
    assert sorted(one["item_count"] for one in told) == [1, 1, 2]
    assert all(sum(one["kinds"].values()) > 2 for one in told)
    assert fetcher.collate_fn is list
    assert sys.getswitchinterval() == interval_s
    assert fetch(fetcher, [0]) == [1]
    assert clock.look.end(id(fetcher.dataset)) == told
    clock.look.begin()
    assert clock.look.end(id(fetcher.dataset)) == []


def test_no_thread_of_ours_runs_beside_a_fork(monkeypatch) -> None:
    clock, fetcher, seen = FetchClock(), Fetcher(), []
    fetch = clock.timed(Fetcher.fetch)
    usual_count = threading.active_count()
    clock.look.begin()
    fetch(fetcher, [0])
    assert threading.active_count() == usual_count + 1
    go_on = ThreadSampler.go_on
    monkeypatch.setattr(
        ThreadSampler, "go_on", lambda one: (seen.append(threading.active_count()), go_on(one))
    )
    fetch_in_a_fork(lambda: None)
    assert seen == [usual_count]
    clock.look.end(0)
    assert threading.active_count() == usual_count


@pytest.mark.measures
def test_a_call_into_c_that_keeps_pythons_lock_is_told_at_its_own_line() -> None:
    class Decoded:
        text = json.dumps(list(range(60_000)))

        def __getitem__(self, index):
            found = json.loads(self.text)
            return found[index]

    clock, fetcher = FetchClock(), Fetcher()
    fetcher.dataset = Decoded()
    fetch = clock.timed(lambda fetcher, indices: [fetcher.dataset[index] for index in indices])
    clock.look.begin()
    for _ in range(20):
        assert fetch(fetcher, [3, 4]) == [3, 4]
    (told,) = clock.look.end(id(fetcher.dataset))
    assert told["kinds"]["decode"] > 0.8 * sum(told["kinds"].values())
    (_, line, _), *_ = told["places"]["decode"]
    assert line == Decoded.__getitem__.__code__.co_firstlineno + 1


def test_an_error_of_the_dataset_is_the_scripts() -> None:
    clock, fetcher = FetchClock(), Fetcher()
    fetch = clock.timed(Fetcher.fetch)
    clock.look.begin()
    with pytest.raises(IndexError):
        fetch(fetcher, [7])
    assert fetcher.collate_fn is list
    assert fetch(fetcher, [0]) == [1]
    clock.look.end(id(fetcher.dataset))


def test_only_loaders_with_workers_have_starts() -> None:
    class Loader:
        persistent_workers, multiprocessing_context = False, None

    class Iterator:
        def __init__(self, count):
            self._num_workers = count

    clock = StartClock(lambda: 0.0)
    clock.begin(lambda original, loader: Iterator(0), None, Loader())
    assert clock.read() == {}
    iterator = clock.begin(lambda original, loader: Iterator(2), None, Loader())
    assert clock.advance(lambda original, iterator: "batch", None, iterator) == "batch"

    def stop(original, iterator):
        raise StopIteration

    with pytest.raises(StopIteration):
        clock.advance(stop, None, iterator)
    found = clock.read()
    assert found["started_count"] == 2
    assert all(seconds > 0 for seconds in found["starts"][0])
    assert clock.spent_s == pytest.approx(sum(found["starts"][0][1:]))


def test_workers_that_stay_have_one_start() -> None:
    class Loader:
        persistent_workers, multiprocessing_context = True, None

    class Iterator:
        _num_workers = 2

    clock, loader = StartClock(lambda: 0.0), Loader()
    for _ in range(3):
        clock.begin(lambda original, loader: Iterator(), None, loader)
    assert len(clock.read()["starts"]) == 1
