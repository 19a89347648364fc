"""What `run` looks at before it becomes the script must cost it nothing."""

import importlib.metadata
import sys

from hasten import session


def test_a_glance_starts_no_torch_and_knows_its_version() -> None:
    loaded = "torch" in sys.modules
    machine = session.glance()
    assert ("torch" in sys.modules) == loaded
    assert machine.torch is not None
    assert machine.torch.version == importlib.metadata.version("torch")
    assert machine.torch.thread_count is None
    assert machine.budget.core_count >= 1


def test_without_torch_a_glance_knows_none(monkeypatch) -> None:
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert session.glance().torch is None


def test_of_another_python_a_glance_does_not_guess_the_torch() -> None:
    assert session.glance(sys.executable).torch is not None
    assert session.glance("/other/venv/bin/python").torch is None
