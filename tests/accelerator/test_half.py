"""float16 with scaled losses on an accelerator: the script's numbers, checkpoints and waits."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from hasten.errors import LeverStopped
from hasten.instrument.live import LiveTraining
from hasten.levers import autocast

SCRIPT = str(Path(__file__).with_name("half_training.py"))
DEVICE = str(torch.accelerator.current_accelerator())


def told(ran, folder, *words):
    """Run the script in a folder of its own; return what it told, saved, and what we said."""
    folder.mkdir()
    done = ran(*words, cwd=folder, LAGGARD_KERNEL_US="100")
    assert done.returncode == 0, done.stderr
    saved = torch.load(folder / "saved.pt", map_location="cpu", weights_only=True)
    return (*json.loads(done.stdout.splitlines()[-1]), saved, done.stderr)


@pytest.fixture
def both(ran, tmp_path):
    """Run the script as it is, and under the lever."""

    def run(*args):
        plain = told(ran, tmp_path / "plain", SCRIPT, DEVICE, *args)
        lever = ("run", "--set", "autocast=float16")
        return plain, told(ran, tmp_path / "half", *lever, SCRIPT, DEVICE, *args)

    return run


def test_a_run_prints_unscaled_numbers_and_saves_what_plain_python_would(both) -> None:
    (losses, norms, _, saved, _), (seen, seen_norms, _, seen_saved, said) = both("1")
    assert seen == pytest.approx(losses, rel=1e-2)
    assert seen != losses
    assert seen_norms == pytest.approx(norms, rel=2e-2)
    assert said == ""
    assert seen_saved["model"].keys() == saved["model"].keys()
    assert {value.dtype for value in seen_saved["model"].values()} == {torch.float32}
    groups = [one["optimizer"]["param_groups"] for one in (saved, seen_saved)]
    assert groups[0] == groups[1]


def test_a_step_that_overflows_is_left_out_and_told_at_the_end(both) -> None:
    _, (seen, _, _, saved, said) = both("1e30")
    assert max(seen[3:]) < seen[0]
    assert all(bool(value.isfinite().all()) for value in saved["model"].values())
    assert said.splitlines() == [
        "hasten: 1 of 12 steps of the optimizer changed nothing, since gradients overflowed in "
        "float16"
    ]


def test_the_host_does_not_wait_where_the_optimizer_can_look_at_the_answer(both) -> None:
    (_, _, plain, _, _), (_, _, half, _, _) = both("1", "fused")
    assert half <= plain + 2


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.loss = nn.Linear(4, 1), nn.BCELoss()

    def forward(self, x, y):
        scores = self.layer(x)
        return self.loss(scores.float().sigmoid(), y), scores.dtype


@pytest.mark.parametrize("named", ["", "models.py has binary_cross_entropy in forward"])
def test_a_loss_that_autocast_refuses_keeps_the_model_in_float32(named, monkeypatch) -> None:
    def judged(net, device):
        live = LiveTraining()
        undo = autocast.apply(live, "bfloat16")
        live.roots.meet(net.to(device))
        given = torch.rand(8, 4, device=device), torch.ones(8, 1, device=device)
        try:
            return live.roots.call(nn.Module.__call__, net, given, {})[1]
        finally:
            undo()

    monkeypatch.setattr(autocast, "find_word", lambda look: named)
    assert judged(Judge(), "cpu") == torch.bfloat16
    if named:
        with pytest.raises(LeverStopped, match="binary_cross_entropy"):
            judged(Judge(), DEVICE)
    else:
        assert judged(Judge(), DEVICE) == torch.float32
