"""Scripts for the CPU train on an accelerator as they do without it; any accelerator will do."""

import json
import tempfile
from pathlib import Path

import pytest
import torch

from hasten.levers.device_placement import Placement, _move
from hasten.root_calls.values import with_tensors

SCRIPT = str(Path(__file__).with_name("placed.py"))
DEVICE = str(torch.accelerator.current_accelerator())


@pytest.fixture
def played(ran, tmp_path):
    """Play a scene in a folder of its own; return what it told, its files and what we said."""

    def play(*words, late_us="0"):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        done = ran(*words, cwd=folder, LAGGARD_KERNEL_US=late_us, LAGGARD_COPY_US=late_us)
        assert done.returncode == 0, done.stderr
        *said, numbers, device = done.stdout.splitlines()
        files = sorted(path.name for path in folder.iterdir())
        return json.loads(numbers), (said, files), device, done.stderr

    return play


@pytest.mark.parametrize(
    ("scene", "late_us"),
    [
        ("pictures", "300"),
        ("sentences", "300"),
        ("moved", "0"),
        pytest.param("pictures", "0", marks=pytest.mark.slow),
        pytest.param("rivals", "0", marks=pytest.mark.slow),
    ],
)
def test_a_script_trains_as_it_does_on_the_cpu(played, scene, late_us) -> None:
    numbers, rest, device, _ = played(SCRIPT, scene)
    assert device == "cpu"
    command = ("run", "--set", f"device_placement={DEVICE}", SCRIPT, scene)
    seen, seen_rest, device, said = played(*command, late_us=late_us)
    assert device == DEVICE, said
    assert seen == pytest.approx(numbers, rel=2e-3, abs=2e-3)
    assert seen_rest == rest


@pytest.mark.parametrize(("scene", "why"), [("refused", "numpy"), ("shared", "other processes")])
def test_what_cannot_be_carried_goes_on_on_the_cpu_and_says_so(played, scene, why) -> None:
    numbers, rest, _, _ = played(SCRIPT, scene)
    command = ("run", "--set", f"device_placement={DEVICE}", SCRIPT, scene)
    seen, seen_rest, device, said = played(*command)
    assert (device, seen_rest) == ("cpu", rest)
    assert seen == pytest.approx(numbers, rel=2e-3, abs=2e-3)
    assert "device_placement" in said
    assert why in said


def test_a_device_that_is_not_there_is_said_and_the_script_runs(played) -> None:
    numbers, rest, _, _ = played(SCRIPT, "rivals")
    command = ("run", "--set", "device_placement=nowhere", SCRIPT, "rivals")
    seen, seen_rest, device, said = played(*command)
    assert (seen, seen_rest, device) == (numbers, rest, "cpu")
    assert "device_placement" in said


def test_a_script_for_another_device_trains_on_this_one(played) -> None:
    command = ("run", "--device", DEVICE, SCRIPT, "elsewhere")
    _, _, device, said = played(*command)
    assert (device, said) == (DEVICE, "")


def test_a_packed_sequence_keeps_its_sizes_on_the_cpu() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    moved = with_tensors(packed, lambda tensor: tensor.to(DEVICE))
    assert moved.data.device.type == DEVICE
    assert moved.batch_sizes.device.type == "cpu"


@pytest.mark.parametrize(
    ("option", "place"), [("fused", DEVICE), ("capturable", DEVICE), ("amsgrad", "cpu")]
)
def test_the_count_of_steps_is_where_the_kernels_of_an_optimizer_read_it(option, place) -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters(), **{option: True})
    state = {"step": torch.ones(()), "exp_avg": torch.ones(2, 2)}  # as a checkpoint gave it
    optimizer.state[net.weight] = state
    placement = Placement(DEVICE, pytest.fail)
    for there, expected in ((DEVICE, place), ("cpu", "cpu")):
        _move(net, torch.device(there))
        placement.follow(optimizer)
        assert state["exp_avg"].device.type == there
        assert state["step"].device.type == expected
