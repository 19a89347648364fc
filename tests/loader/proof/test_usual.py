"""What datasets of public repositories do beyond the plain case, each beside a twin that may not.

The classes stand in benchmarks/proofs.json.
"""

import argparse
import sys
from types import ModuleType

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hasten.loader.proof import functions, library
from hasten.loader.proof.holders import user_modules
from hasten.loader.proof.items import read_items
from hasten.loader.proof.source import is_user_class
from hasten.loader.proof.values import new, unknown

v1 = pytest.importorskip("torchvision.transforms", reason="torchvision is not installed")
v2 = pytest.importorskip("torchvision.transforms.v2")


class Held(Dataset):
    """A dataset of points."""

    def __init__(self, mode="train"):
        self.mode = mode
        self.points = [np.ones((4, 2)) for _ in range(8)]
        self.seen = []

    def __len__(self):
        return 8


def gaps(kind, *args):
    return [gap.what for gap in read_items(DataLoader(kind(*args)))[0].gaps]


# ---- what never runs is not followed


class Modes(Held):
    def __getitem__(self, i):
        if self.mode.lower() == "train":
            return self.points[i] * 2
        return self.test_points[i]


class Returns(Held):
    def __getitem__(self, i):
        if self.mode == "train":
            return self.points[i] * 2
        self.seen.append(i)
        return self.points[i] * 3


class Raises(Held):
    def __getitem__(self, i):
        if self.mode.startswith("tr"):
            raise IndexError(i)
        self.seen.append(i)
        return i


class Chooses(Held):
    def __getitem__(self, i):
        if self.points[i].sum() > 3:
            return i
        else:  # noqa: RET505
            raise IndexError(i)
        self.seen.append(i)
        return i


class open_rows:  # noqa: N801
    def __enter__(self):
        return self

    def __exit__(self, *told):
        return True


class Swallows(Held):
    def __getitem__(self, i):
        with self.open():
            return self.points[i][i]
        self.seen.append(i)
        return i

    def open(self):
        return open_rows()


class Handles(Held):
    def __getitem__(self, i):
        try:
            raise IndexError(i)
        except IndexError:
            self.seen.append(i)
        return i


class Finishes(Held):
    def __getitem__(self, i):
        try:
            return i
        finally:
            self.seen.append(i)


class StepScheduler(Held):
    def __getitem__(self, i):
        for one in self.points:
            if len(one) > i:
                return i
            self.seen.append(i)
        return i


@pytest.mark.parametrize("kind", [Modes, Returns, Raises, Chooses])
def test_what_stands_behind_a_return_that_is_always_taken_does_not_count(kind):
    assert gaps(kind) == []


@pytest.mark.parametrize(("kind", "mode"), [(Returns, "test"), (Raises, "test"), (Modes, "test")])
def test_it_counts_where_another_mode_takes_it(kind, mode):
    assert gaps(kind, mode)


@pytest.mark.parametrize("kind", [Handles, Finishes, StepScheduler, Swallows])
def test_handlers_and_what_may_be_reached_count(kind):
    assert gaps(kind)


# ---- memory of copies


class Mirrors(Held):
    def __getitem__(self, i):
        return self.mirrored({"points": self.points[i]})

    def mirrored(self, sample):
        points = sample["points"].copy()
        points = points.reshape(2, 2, 2)
        points[:, :, 0] = 1 - points[:, :, 0]
        return torch.from_numpy(points.astype(np.float32))


class MirrorsInPlace(Mirrors):
    def mirrored(self, sample):
        points = sample["points"].reshape(2, 2, 2)
        points[:, :, 0] = 1 - points[:, :, 0]
        return points.astype(np.float32)


class Scales(Mirrors):
    def mirrored(self, sample):
        points = sample["points"].copy()
        points[:, 0::2] /= 3
        return torch.from_numpy(points.astype(np.float32))


class ScalesInPlace(Mirrors):
    def mirrored(self, sample):
        points = sample["points"]
        points[:, 0::2] /= 3
        return points.astype(np.float32)


class Window:
    """Its `reshape` and its slices are what it holds, not its own memory."""

    def __init__(self, held):
        self.held = held

    def reshape(self, *shape):
        return self.held

    def __getitem__(self, key):
        return self.held


class ReshapesItsOwn(Mirrors):
    def mirrored(self, sample):
        window = [Window(sample["points"])][0]
        window.reshape(4)[0] = 3.0
        return 1


class SlicesItsOwn(Mirrors):
    def mirrored(self, sample):
        window = [Window(sample["points"])][0]
        window[1:] += 1
        return 1


class MembersOfACopy(Mirrors):
    def mirrored(self, sample):
        rows = [sample["points"]].copy()
        rows[0][0] = 3.0
        return 1


@pytest.mark.parametrize("kind", [Mirrors, Scales])
def test_the_memory_of_a_copy_may_be_written_through_its_views(kind):
    assert gaps(kind) == []


@pytest.mark.parametrize(
    "kind", [MirrorsInPlace, ScalesInPlace, ReshapesItsOwn, SlicesItsOwn, MembersOfACopy]
)
def test_the_memory_of_the_dataset_may_not(kind):
    assert gaps(kind)


# ---- chains of transforms that are made for each item


class Flip:
    def __call__(self, sample):
        return {"points": sample["points"][:, ::-1].copy()}


class Shift:
    def __call__(self, sample):
        sample["points"][0] += 1.0
        return sample


class Notes:
    def __init__(self, into):
        self.into = into

    def __call__(self, sample):
        self.into.append(1)
        return sample


class Chains(Held):
    def __getitem__(self, i):
        return self.chained({"points": self.points[i]})

    def chained(self, sample):
        chain = v1.Compose([Flip(), lambda one: torch.from_numpy(one["points"].copy())])
        return chain(sample)


class ChainsAWriter(Chains):
    def chained(self, sample):
        return v1.Compose([Shift(), Flip()])(sample)["points"].copy()


class ChainsWhatItKeeps(Chains):
    def chained(self, sample):
        return v1.Compose([Notes(self.seen)])(sample)["points"].copy()


class ChainsInAChain(Chains):
    def chained(self, sample):
        return v1.Compose([v1.Compose([Notes(self.seen)])])(sample)["points"].copy()


class ChainsMoreLater(Chains):
    def chained(self, sample):
        chain = v1.Compose([Flip()])
        chain.transforms.append(Notes(self.seen))
        return chain(sample)["points"].copy()


class ChainsOneOfTwo(Chains):
    def chained(self, sample):
        chain = v1.Compose([Flip()])
        if sample["points"][0, 0] > 0:
            chain = v1.Compose([Notes(self.seen)])
        return chain(sample)["points"].copy()


def test_a_chain_that_is_written_out_is_followed_stage_by_stage():
    assert gaps(Chains) == []


@pytest.mark.parametrize(
    "kind", [ChainsAWriter, ChainsWhatItKeeps, ChainsInAChain, ChainsMoreLater, ChainsOneOfTwo]
)
def test_a_stage_that_writes_is_found(kind):
    assert gaps(kind)


# ---- libraries


class Multiplies(Held):
    def __getitem__(self, i):
        points = torch.from_numpy(self.points[i])
        return points.mv(points[0]), points.outer(points[0]).logsumexp(0) if 0 else 1


def test_products_of_tensors_are_known():
    assert gaps(Multiplies) == []


@pytest.mark.parametrize(("name", "count"), [("LUT", 2), ("normalize", 1), ("filter2D", 3)])
def test_functions_of_opencv_may_write_into_fresh_pictures_alone(name, count):
    fresh = [new(flat=True)] * count
    assert library.is_pure("cv2", name)
    assert not functions.writes_an_argument(name, {"cv2"}, [*fresh, new(flat=True)], {})
    assert functions.writes_an_argument(name, {"cv2"}, [*fresh, unknown()], {})


class Compiled:
    """A function that Cython compiled: its code names the source of whoever built it."""

    __code__ = (lambda: 0).__code__.replace(co_filename="h5py/_objects.pyx")

    def __init__(self, home):
        self.__module__ = home


def made(home, found):
    return type("File", (), {"__module__": home, "read": found})


def test_a_compiled_class_of_a_library_is_the_library_s():
    assert not is_user_class(made("numpy", Compiled("numpy.linalg")))
    assert is_user_class(made("numpy", Compiled(__name__)))
    assert is_user_class(made("numpy", Compiled("a module that is not there")))
    assert is_user_class(made("numpy", lambda self: self))


class Moved(ModuleType):
    """What `six.moves` has: a module that imports another one when it is asked for anything."""

    def __getattr__(self, name):
        raise ModuleNotFoundError(f"No module named '_gdbm', for {name}")


def test_a_module_that_is_imported_when_it_is_used_is_left_alone(monkeypatch):
    assert not is_user_class(made("numpy", Moved("dbm_gnu")))
    assert is_user_class(made("numpy", property(lambda self: self)))
    assert is_user_class(made("numpy", staticmethod(lambda: 0)))
    monkeypatch.setitem(sys.modules, "moved", Moved("moved"))
    assert all(type(module) is not Moved for module in user_modules())


class CallsWhatIsUnknown(Held):
    def __init__(self):
        super().__init__()
        self.augment = argparse.Namespace()

    def __getitem__(self, i):
        return self.augment(self.points[i])


def test_what_is_unknown_is_named_in_english():
    assert gaps(CallsWhatIsUnknown) == ["it calls an argparse.Namespace"]


# ---- a handler within a handler, and transforms that are modules


class TriesInATry(Held):
    def __getitem__(self, i):
        try:
            try:
                len(self.points)
            except ValueError:
                found = []
            found = self.points[i]
        except IndexError:
            found = self.points[0]
        return found * 2


class KeepsInATry(Held):
    def __getitem__(self, i):
        try:
            try:
                len(self.points)
            except ValueError:
                found = []
            found = self.seen
        except IndexError:
            found = []
        found.append(i)
        return i


def test_a_try_within_another_is_followed():
    assert gaps(TriesInATry) == []
    assert gaps(KeepsInATry)


class Tables(Held):
    def __init__(self):
        super().__init__()
        self.frame = pandas.DataFrame({"x": np.ones(8), "target": np.zeros(8)})

    def __getitem__(self, i):
        return self.frame.iloc[i].drop("target").values.astype(np.float32)


class EmptiesATable(Tables):
    def __getitem__(self, i):
        self.frame.drop(columns="x", inplace=True)
        return i


def test_what_a_table_makes_without_a_column_is_new() -> None:
    assert gaps(Tables) == []
    assert "inplace" in gaps(EmptiesATable)[0]


class Transforms(Held):
    def __init__(self):
        super().__init__()
        self.transform = v1.Compose([v1.Normalize((0.1,), (0.3,))])

    def __getitem__(self, i):
        return self.transform(torch.ones(1, 2, 2) * i)


class ReadsWeights(Held):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 2)

    def __getitem__(self, i):
        return self.net.weight * i


@pytest.mark.parametrize(("kind", "expected"), [(Transforms, False), (ReadsWeights, True)])
def test_a_transform_of_torchvision_is_no_network(kind, expected):
    assert read_items(DataLoader(kind()))[0].has_modules is expected


@pytest.mark.parametrize(
    ("transform", "draws"),
    [
        (v1.Resize(4), False),
        (v2.Resize(4), False),
        (v1.Pad(1, padding_mode="reflect"), False),
        (v1.RandomRotation(9), True),
        (v2.RandomApply([v2.Resize(4)]), True),
    ],
)
def test_a_transform_draws_where_its_name_says_so(transform, draws) -> None:
    class Changed(Transforms):
        def __init__(self):
            super().__init__()
            self.transform = transform

    reads, _ = read_items(DataLoader(Changed()))
    assert (reads.draws, reads.gaps) == (draws, [])
