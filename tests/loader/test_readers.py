"""Files that libraries open in C are stamped where their readers are known, and refused elsewhere.

The libraries are stand-ins: they open files by torch, of which no audit event tells either.
"""

import importlib
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hasten.loader.cache import file_access, memo
from hasten.loader.cache.cached import Cache

CV2 = """
import os

import torch

IMREAD_COLOR, COLOR_BGR2RGB = 1, 4


class error(Exception):
    pass


class VideoCapture:
    pass


def imread(filename, flags=IMREAD_COLOR):
    if not os.path.exists(filename):
        return None
    size = os.path.getsize(filename)
    return torch.from_file(str(filename), size=size, dtype=torch.uint8).clone().numpy()


def imcount(filename):
    return len(imread(filename))


def cvtColor(image, code):
    return image[::-1].copy()
"""
SOUNDFILE = """
from cv2 import imread


class SoundFile:
    def __init__(self, file, mode="r"):
        self.rows = imread(file) if mode == "r" and not isinstance(file, int) else None


def read(file):
    return SoundFile(file, "r").rows
"""
TORCHAUDIO = """
from cv2 import imread

from torchaudio import functional, io


def load(uri, frame_offset=0):
    return imread(uri)[frame_offset:]
"""
FUNCTIONAL = """
def gain(waveform, gain_db):
    return waveform + gain_db
"""


@pytest.fixture(autouse=True)
def _samples_cost_enough(monkeypatch):
    monkeypatch.setattr(memo, "_OVERHEAD_NS", -(10**12))
    monkeypatch.setattr(memo, "_LOOK_SHARE_RATIO", 1e9)


@pytest.fixture
def libraries(install):
    """Stand-ins as they would be installed, in a name space for code that uses them."""
    texts = {
        "cv2.py": CV2, "soundfile.py": SOUNDFILE, "torchaudio/functional.py": FUNCTIONAL,
        "torchaudio/__init__.py": TORCHAUDIO, "torchaudio/io.py": "",
        "librosa.py": "import soundfile\n\n\ndef load(path):\n    return soundfile.read(path)\n",
    }  # fmt: skip
    install(texts)
    names = ("cv2", "soundfile", "librosa", "torchaudio")
    space = {name: importlib.import_module(name) for name in names}
    cv2 = space["cv2"]
    space |= {
        "imread": cv2.imread, "cvtColor": cv2.cvtColor, "read": space["soundfile"].read,
        "partly": partial(cv2.imread, flags=1), "held": [cv2.imread],
    }  # fmt: skip
    return space


def images(libraries, folder, code):
    """Return a dataset of 16 files whose items are what `code` makes of the path of one."""
    for index in range(16):
        (folder / str(index)).write_bytes(bytes([index] * 50))
    time.sleep(0.06)  # a file that changed just now may change again without another stamp
    space = {**libraries, "folder": str(folder)}
    exec(f"def item(self, index):\n    path = f'{{folder}}/{{index}}'\n    {code}", space)
    kind = type("Images", (Dataset,), {
        "__module__": __name__, "__len__": lambda self: 16, "__getitem__": space["item"],
    })  # fmt: skip
    return kind()


SEEN = [
    "return cv2.imread(path)",
    "return cv2.imread(filename=path, flags=cv2.IMREAD_COLOR)",
    "return cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)",
    "return cvtColor([*map(cv2.imread, [path])][0], 1)",
    "return soundfile.read(path)",
    "return read(path)",
    "return librosa.load(path)",
    "return torchaudio.load(path)",
    "return torchaudio.functional.gain(torchaudio.load(uri=path, frame_offset=2), 1)",
]


@pytest.mark.parametrize("code", SEEN)
def test_a_file_that_a_library_opens_in_c_is_kept_until_it_is_replaced(
    libraries, tmp_path, code
) -> None:
    dataset = images(libraries, tmp_path, code)
    cache = Cache(1 << 22)
    for number in range(4):
        if number:
            (tmp_path / "5").write_bytes(bytes([100 + number] * 50))
            time.sleep(0.06)
        source = cache.offer(DataLoader(dataset, batch_size=8, collate_fn=list))
        assert not isinstance(source, str), source
        for start in (0, 8):
            indices = range(start, start + 8)
            for ours, index in zip(source.fetch(list(indices)), indices, strict=True):
                assert np.array_equal(ours, dataset[index])
    assert cache.counts()["entries"] == 16


@pytest.mark.parametrize("code", [
    "return imread(path)",
    "return partly(path)",
    "return held[0](path)",
    "reader = cv2; return reader.imread(path)",
    "return getattr(cv2, 'imread')(path)",
    "return [getattr(one, 'imread')(path) for one in [cv2]][0]",
    "return cv2.VideoCapture(path)",
    "return cv2.imcount(path)",
    "import cv2; return cv2.imread(path)",
    "return self.cv2.imread(path)",
    "return torchaudio.io.StreamReader(path)",
    "return self.read(path)",
])  # fmt: skip
def test_what_might_open_files_in_another_way_is_refused(libraries, tmp_path, code) -> None:
    dataset = images(libraries, tmp_path, code)
    if "self.read" in code:
        dataset.read = libraries["cv2"].imread
    assert "may read files" in Cache(1 << 22).offer(DataLoader(dataset))


def test_a_sound_that_is_held_open_is_refused(libraries, tmp_path) -> None:
    dataset = images(libraries, tmp_path, "return self.sound.rows")
    dataset.sound = libraries["soundfile"].SoundFile(tmp_path / "0")
    assert "keeps a file open" in Cache(1 << 22).offer(DataLoader(dataset))


@pytest.mark.parametrize("code", [
    "soundfile.SoundFile(path, 'w'); return index",
    "return soundfile.SoundFile(0, 'r') is None",
])  # fmt: skip
def test_what_leaves_no_stamp_is_not_kept(libraries, tmp_path, code) -> None:
    dataset = images(libraries, tmp_path, code)
    cache = Cache(1 << 22)
    source = cache.offer(DataLoader(dataset, batch_size=8))
    source.fetch(list(range(8)))
    assert cache.counts()["entries"] == 0


def test_a_file_that_is_missing_is_looked_for_again_once_it_is_there(libraries, tmp_path) -> None:
    dataset = images(libraries, tmp_path, "return cv2.imread(path + 'x') is None")
    cache = Cache(1 << 22)
    source = cache.offer(DataLoader(dataset, batch_size=8))
    assert source.fetch(list(range(8))).all()
    assert cache.counts()["entries"] == 8
    for index in range(8):
        (tmp_path / f"{index}x").write_bytes(b"1")
    assert not source.fetch(list(range(8))).any()


def test_readers_are_the_librarys_own_outside_of_a_record(libraries, tmp_path) -> None:
    cv2, sound = libraries["cv2"], libraries["soundfile"].SoundFile
    own = cv2.imread, sound.__init__
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    file_access.record()
    watched = cv2.imread, sound.__init__
    assert watched[0] is not own[0]
    assert watched[1] is not own[1]
    inner = file_access.record()
    assert (cv2.imread, sound.__init__) == watched
    assert cv2.imread(path).tolist() == [97, 98, 99]
    file_access.stop()
    assert (cv2.imread, sound.__init__) == watched
    file_access.stop()
    assert (cv2.imread, sound.__init__) == own
    assert set(inner.stamps) == {str(path)}
    watched[0](path)  # an item may have held it
    assert file_access.record().stamps == {}
    file_access.stop()


def test_a_library_that_an_item_imports_is_watched_from_the_next_item_on(libraries) -> None:
    cv2 = sys.modules.pop("cv2")
    own = cv2.imread
    file_access.record()
    file_access.record().saw("import", ("cv2", None, None, None, None))
    sys.modules["cv2"] = cv2
    file_access.stop()
    assert cv2.imread is own
    file_access.record()
    assert cv2.imread is not own
    file_access.stop()
    file_access.stop()
    assert cv2.imread is own


def test_readers_come_back_after_an_item_that_raises(libraries, tmp_path) -> None:
    own = libraries["cv2"].imread
    dataset = images(libraries, tmp_path, "cv2.imread(path); raise cv2.error('no')")
    source = Cache(1 << 22).offer(DataLoader(dataset))
    with pytest.raises(libraries["cv2"].error):
        source.fetch([1])
    assert libraries["cv2"].imread is own


def test_a_reader_that_the_script_has_set_meanwhile_stays(libraries) -> None:
    other = len
    file_access.record()
    libraries["cv2"].imread = other
    file_access.stop()
    assert libraries["cv2"].imread is other
    file_access.record()
    assert libraries["cv2"].imread is not other
    file_access.stop()
    assert libraries["cv2"].imread is other


def test_threads_that_record_leave_the_librarys_own(libraries, tmp_path) -> None:
    cv2, path = libraries["cv2"], tmp_path / "a"
    own, missed = cv2.imread, []
    path.write_bytes(b"abc")

    def work():
        for _ in range(300):
            file_access.record()
            missed.extend([0] if cv2.imread is own else [])
            file_access.stop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert missed == []
    assert cv2.imread is own


def test_a_library_that_is_imported_meanwhile_leaves_no_stamp() -> None:
    seen = file_access.FileAccessRecord()
    seen.saw("import", ("colorsys", None, None, None, None))
    assert seen.why_not == ""
    seen.saw("import", ("soundfile", None, None, None, None))
    assert seen.why_not == "it imports soundfile"


def test_torchvision_tells_which_files_it_opens(libraries, tmp_path, monkeypatch) -> None:
    own = libraries["imread"]
    monkeypatch.setitem(sys.modules, "torchvision.io.image", libraries["cv2"])
    monkeypatch.setattr(torch.ops.image, "read_file", own, raising=False)
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    seen = file_access.record()
    assert torch.ops.image.read_file(str(path)).tolist() == [97, 98, 99]
    file_access.stop()
    assert set(seen.stamps) == {str(path)}
    assert torch.ops.image.read_file is own
