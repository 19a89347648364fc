"""What is pinned is called, and pickled, as the script always did."""

import json
import subprocess
import sys

import pytest

PROGRAM = r"""
import pickle, random
import numpy as np
import torch
from hasten.verify.seeding import pin_numpy, pin_python, pin_torch

plain = np.random.RandomState(42).rand()
pin_python(7)
pin_numpy(7)
pin_torch(7)
np.random.seed(seed=42)
assert np.random.rand() == plain
np.random.seed()
first = np.random.rand()
np.random.seed(None)
assert np.random.rand() == first
random.seed(a=3)
for name in ("np.random.seed", "random.seed", "torch.seed", "torch.random.seed"):
    assert pickle.loads(pickle.dumps(eval(name))) is eval(name), name
"""


@pytest.mark.child
def test_a_pinned_seed_takes_the_arguments_of_its_original_and_can_be_pickled() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


AGREED = r"""
import json, multiprocessing, os, random, secrets, sys, threading, uuid
import numpy as np
import torch
from hasten.verify import seeding

draw = seeding.agreed(7)
seeding.pin_system(draw)
seeding.pin_python(draw(64), draw)
seeding.pin_numpy(draw(32), draw)
seeding.pin_torch(draw(63), draw)

def one():
    random.seed()
    np.random.seed()
    return [random.random(), np.random.rand(), np.random.default_rng().random(), torch.seed(),
            torch.rand(1).item(), os.urandom(4).hex(), secrets.token_hex(4), uuid.uuid4().hex,
            random.Random().random(), random.SystemRandom().random(), len(os.urandom(0))]

def put(queue):
    queue.put(one())

context, found = multiprocessing.get_context("fork"), []
if sys.argv[1:]:
    for _ in range(3):  # of a thread of one rank alone
        os.urandom(8)
for _ in range(2):
    queue = context.Queue()
    worker = context.Process(target=put, args=(queue,))
    worker.start()
    found.append(queue.get())
    worker.join()
print(json.dumps([*found, one(), one()]))
"""


@pytest.mark.child
def test_ranks_draw_the_same_and_each_time_and_each_worker_something_else() -> None:
    found = [
        json.loads(subprocess.check_output([sys.executable, "-c", AGREED, *words], text=True))
        for words in ((), ("a thread that draws",))
    ]
    assert found[0] == found[1]
    for column in list(zip(*found[0], strict=True))[:-1]:
        assert len(set(column)) == 4, column
