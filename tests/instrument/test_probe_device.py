"""Probes of operations run on the CPU, wherever the script makes its tensors."""

import time

import pytest

torch = pytest.importorskip("torch")

from hasten.instrument.operation_timing import price_ns  # noqa: E402
from hasten.instrument.probes import ConvolutionShape, speed_ratio  # noqa: E402
from hasten.instrument.traits import TraitsReader  # noqa: E402


@pytest.fixture
def _elsewhere():
    """Let the script make its tensors on another device than the CPU."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("_elsewhere")
def test_probes_compute_on_the_cpu_wherever_the_script_makes_its_tensors() -> None:
    made = []

    class Note(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            made.extend(r.device.type for r in (result,) if isinstance(r, torch.Tensor))
            return result

    with Note():
        price_ns(time.perf_counter_ns)
        speed_ratio(ConvolutionShape((1, 1, 4, 4), (1, 1, 3, 3), torch.float32,
                          ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)))  # fmt: skip
    assert set(made) == {"cpu"}


def test_the_device_is_that_of_the_models() -> None:
    seen = TraitsReader()
    seen.called(torch.nn.Linear(2, 2, device="meta"), (), {})
    assert seen.model.found.device == "meta"
