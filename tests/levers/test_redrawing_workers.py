"""redrawing_workers: proposed only where nobody can replay the script's own draws."""

from dataclasses import replace

import pytest

from hasten.lever import ScriptContext
from hasten.levers import loader_workers
from hasten.levers.redrawing_workers import LEVER
from hasten.records import Phase
from hasten.testing import LAPTOP, SERVER, fed, sample_profile


def context(*, loop_draws=None, **loader):
    traits = replace(fed(**loader), loop_draws=loop_draws)
    profile = sample_profile({Phase.DATA: 0.7, Phase.FORWARD: 0.3})
    return ScriptContext(machine=SERVER, baseline=profile, traits=traits)


def test_is_proposed_where_the_batches_cannot_be_the_script_s_own() -> None:
    assert LEVER.settings(context(draws=True, loop_draws=True))[0] == 3


def test_is_proposed_beside_the_one_worker_that_can_take_over_the_draws() -> None:
    drawing = context(draws=True, loop_draws=False)
    assert loader_workers.LEVER.settings(drawing) == (1,)
    assert 1 not in LEVER.settings(drawing)
    assert LEVER.settings(drawing)[0] == 3
    assert loader_workers.LEVER.settings(context(draws=True, loop_draws=True)) == ()


def test_is_not_proposed_where_the_script_s_own_sampler_is_asked_batch_by_batch() -> None:
    own = context(has_own_order=True)
    assert LEVER.settings(own) == ()
    assert "one batch at a time" in LEVER.why_not(own)


def test_is_not_proposed_where_they_can() -> None:
    assert LEVER.settings(context(draws=False)) == ()
    assert "the script's own batches" in LEVER.why_not(context())
    assert (
        LEVER.why_not(ScriptContext(machine=LAPTOP))
        == "the loop takes its batches from no DataLoader"
    )


PROGRAM = r"""
import random
from torch.utils.data import Dataset

class Noisy(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        return torch.randn(3, 8, 8), i % 3

def seen(settings):
    run = Run()
    run.loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
    labels = []
    loader, run.loader = run.loader, []
    run.applied.switch(settings)
    for x, y in loader:
        labels.append(y.tolist())
        run.optimizer.zero_grad()
        nn.functional.cross_entropy(run.net(x), y).backward()
        run.optimizer.step()
    run.close()
    return labels, hashed([p for p in run.net.parameters()])

stock, other = seen({}), seen({"redrawing_workers": 2})
facts["samples"] = stock[0] == other[0]
facts["draws"] = stock[1] != other[1]
"""


@pytest.mark.child
def test_the_samples_and_their_order_stay_and_the_draws_are_others(training) -> None:
    assert training(PROGRAM) == {"samples": True, "draws": True}
