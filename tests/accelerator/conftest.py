"""Tests on `laggard`, an accelerator that torch has to know from its import on.

`make test` builds it and runs this folder with it on the PYTHONPATH; elsewhere nothing is
collected.
"""

import pytest
import torch

collect_ignore_glob = ["laggard/*", "late_training.py"]
if str(torch.accelerator.current_accelerator()) != "laggard":
    collect_ignore_glob.append("test_*.py")


@pytest.fixture(autouse=True)
def prompt():
    """Leave the device without delay for the next test."""
    import laggard

    yield
    torch.accelerator.synchronize()
    laggard.configure()
