"""Arrays of a batch arrive as torch's own workers deliver them, whatever way they took."""

from collections import OrderedDict, defaultdict
from multiprocessing.reduction import ForkingPickler
from pickle import loads
from typing import NamedTuple

import numpy as np
import pytest
import torch

from hasten.loader.workers.inline_batch import as_pickled, opened, posted

CUBE = np.arange(24.0).reshape(2, 3, 4)


class Pair(NamedTuple):
    images: np.ndarray
    labels: list


class Samples(list):
    source = None


class Fields(dict):
    def __init__(self, name):
        self.name = name


def samples():
    made = Samples([CUBE.copy().transpose(0, 2, 1)])
    made.source = "train"
    return made


def fields():
    made = Fields("batch")
    made["x"] = CUBE.copy()[:, ::2]
    return made


def read_only(array):
    array.setflags(write=False)
    return array


BATCHES = {
    "as it is": CUBE.copy(),
    "transposed": CUBE.copy().transpose(0, 2, 1),
    "turned round": CUBE.copy().T,
    "every other": CUBE.copy()[:, ::2],
    "read-only": read_only(CUBE.copy()),
    "read-only and turned round": read_only(CUBE.copy().T),
    "of a buffer": np.frombuffer(bytes(16), dtype=np.int32),
    "one number": np.float32(3.0),
    "inside": {"a": [CUBE.copy().transpose(0, 2, 1), 1], "b": (read_only(CUBE.copy()), "x")},
    "named": Pair(CUBE.copy()[..., ::-1], [1, 2]),
    "by default": defaultdict(list, {"a": [CUBE.copy().T[1:]], "b": [1]}),
    "in order": OrderedDict(a=CUBE.copy()[:, ::2], b=2),
    "a list of the script's": samples(),
    "a dict of the script's": fields(),
}


def shape_of(value):
    if isinstance(value, np.ndarray):
        return value.tobytes(), value.dtype, value.strides, value.flags.writeable
    own = type(value), getattr(value, "default_factory", None), getattr(value, "__dict__", None)
    if isinstance(value, dict):
        return own, {key: shape_of(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return own, [shape_of(part) for part in value]
    return value


@pytest.mark.parametrize("name", BATCHES)
def test_an_array_has_the_strides_and_can_be_written_to_as_after_the_pickle_of_a_worker(name):
    batch = BATCHES[name]
    pickled = loads(bytes(ForkingPickler.dumps(batch, 4)))
    assert shape_of(as_pickled(batch)) == shape_of(pickled)
    assert shape_of(opened(posted(as_pickled(batch)))) == shape_of(pickled)


def test_a_batch_in_which_nothing_changes_is_itself() -> None:
    batch = {"x": [torch.ones(2).expand(3, 2), np.zeros(3)], "y": (1, "two")}
    assert as_pickled(batch) is batch
