"""The facts of a machine, read while the script starts."""

from dataclasses import replace

import pytest

from hasten import machine
from hasten.records import Torch
from hasten.session.setup import MachineSurvey
from hasten.testing import LAPTOP

TOLD = Torch(
    version="2.13.0", accelerator="cuda", accelerators=("GPU",),
    accelerator_bytes=100, accelerator_free_bytes=10, accelerator_busy_ratio=0.9,
)  # fmt: skip
ONE_CORE = replace(LAPTOP, budget=replace(LAPTOP.budget, core_count=1))
WITH_DEVICE = replace(LAPTOP, device_files=("/dev/nvidia0",))


class Probe:
    def __init__(self, python):
        self.is_asked = self.is_ended = False
        Probe.last = self

    def answer(self, timeout_s):
        self.is_asked = True
        return TOLD if timeout_s > 0 else None

    def end(self):
        self.is_ended = True


@pytest.fixture
def survey(monkeypatch):
    monkeypatch.setattr(machine, "TorchProbe", Probe)

    def begin(found=LAPTOP, patience_s=60.0):
        monkeypatch.setattr(machine, "read", lambda: replace(found, torch=None, caveats=()))
        return MachineSurvey("python", patience_s=patience_s)

    return begin


def names(found):
    return {caveat.name for caveat in found.caveats}


def test_torch_answers_while_the_script_starts_and_what_it_may_use_itself_is_unknown(survey):
    with survey() as facts:
        assert not Probe.last.is_asked
        assert facts.machine.torch is None
        found = facts.complete()
    unknown = {"accelerator_busy_ratio": None, "accelerator_free_bytes": None}
    assert found.torch == replace(TOLD, **unknown)
    assert not names(found) & {"busy_accelerator", "used_accelerator", "torch_missing"}
    assert facts.complete() is found


@pytest.mark.parametrize("found", [ONE_CORE, WITH_DEVICE], ids=["one core", "a device"])
def test_torch_is_asked_first_on_one_core_and_beside_an_accelerator(survey, found) -> None:
    with survey(found) as facts:
        assert Probe.last.is_asked
        assert facts.complete().torch == TOLD


def test_a_script_that_fails_meanwhile_ends_the_probe(survey) -> None:
    with pytest.raises(RuntimeError), survey():
        raise RuntimeError
    assert Probe.last.is_ended
    assert not Probe.last.is_asked


def test_torch_that_does_not_answer_in_time_is_told(survey) -> None:
    with survey(patience_s=0.0) as facts:
        assert names(facts.complete()) >= {"torch_missing"}
