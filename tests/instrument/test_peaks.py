"""What this machine reaches at best is measured on the device that was asked for, or not at all."""

import time

import pytest

torch = pytest.importorskip("torch")

from hasten.instrument import peaks  # noqa: E402
from hasten.instrument.layout_probe import ConvolutionShape, speed_ratio  # noqa: E402
from hasten.instrument.operation_timing import price_ns  # noqa: E402
from hasten.instrument.traits import TraitsReader  # noqa: E402


@pytest.fixture
def _elsewhere(monkeypatch):
    """Let the script make its tensors on another device than the CPU."""
    monkeypatch.setattr(peaks, "_PROBE_S", 0.01)
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
        assert peaks.peaks("cpu")["peak_flops"] > 0
        price_ns(time.perf_counter_ns)
        speed_ratio(ConvolutionShape((1, 1, 4, 4), (1, 1, 3, 3), torch.float32,
                          ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)))  # fmt: skip
    assert set(made) == {"cpu"}


def test_nothing_is_known_of_a_device_that_is_not_the_cpu() -> None:
    assert peaks.peaks("cuda") == {"peak_flops": None}


def test_the_device_is_that_of_the_models() -> None:
    seen = TraitsReader()
    assert seen.device == "cpu"
    seen.called(torch.nn.Linear(2, 2, device="meta"), (), {})
    assert seen.device == "meta"
