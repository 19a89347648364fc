"""What is pinned is called, and pickled, as the script always did."""

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
