"""Tests on `laggard`, an accelerator that torch has to know from its import on.

`make test` builds it and runs this folder with it on the PYTHONPATH; elsewhere nothing is
collected.
"""

import torch

ACCELERATOR = torch.accelerator.current_accelerator()
if ACCELERATOR is None or ACCELERATOR.type != "laggard":
    collect_ignore_glob = ["test_*.py", "laggard/*"]
else:
    import laggard
    import pytest

    collect_ignore_glob = ["laggard/*"]

    @pytest.fixture(autouse=True)
    def prompt():
        """Leave the device without delay for the next test."""
        yield
        torch.accelerator.synchronize()
        laggard.configure()
