"""Models that draw from other generators than torch's, as told from their code and their calls."""

import os
import random
import secrets
import sysconfig
import time
from random import uniform

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch import nn  # noqa: E402

from hasten.root_calls.model_code import other_draws, other_generators  # noqa: E402
from hasten.root_calls.snapshot import states, went_on  # noqa: E402

RNG = np.random.default_rng(0)


def jitter():
    return random.uniform(0.9, 1.1)


class Net(nn.Module):
    def __init__(self, scale=None):
        super().__init__()
        self.layer, self.scale = nn.Linear(2, 2), scale

    def forward(self, x):
        return torch.relu(self.layer(x)).reshape(x.shape[0], -1)


def net(act):
    def forward(self, x):
        return self.layer(x) * act()

    return type("Drawing", (Net,), {"forward": forward})()


@pytest.mark.parametrize(
    "act",
    [
        lambda: random.uniform(0, 1), lambda: uniform(0, 1), lambda: 2 * np.random.rand(),
        lambda: 2 * RNG.random(), jitter, lambda: sum(jitter() for _ in range(2)),
        lambda: 2 * time.time(), lambda: os.urandom(1)[0],
    ],
)  # fmt: skip
def test_generators_and_clocks_in_a_forward_pass_are_found(act) -> None:
    assert other_draws(nn.Sequential(nn.Linear(2, 2), net(act)))


def test_a_clock_of_a_library_counts_only_in_code_that_was_traced() -> None:
    space = {"time": time, "__name__": "clocks"}
    path = f"{sysconfig.get_path('purelib')}/clocks.py"
    exec(compile("def stamp(): return time.time()", path, "exec"), space)
    stamp = space["stamp"]
    model = net(lambda: 2 * stamp())
    assert other_draws(model, {stamp.__code__}).endswith("stamp names time")
    assert not other_draws(model, set())


def test_a_clock_of_the_script_counts_where_torch_was_told_not_to_trace() -> None:
    def stamp():
        return time.time()

    assert other_draws(net(lambda: 2 * stamp()), set()).endswith("stamp names time")


def test_a_generator_counts_wherever_it_is_named_as_tracing_may_draw() -> None:
    assert other_generators(net(jitter))
    assert not other_generators(net(lambda: 2 * time.time()))
    assert not other_generators(net(lambda: secrets.randbelow(2)))


@pytest.mark.parametrize("held", [random.Random(0), RNG, torch.Generator()])
def test_generators_that_a_model_holds_are_found(held) -> None:
    assert other_draws(Net(held))
    assert other_generators(Net(held))


def test_models_that_draw_from_torch_alone_have_none() -> None:
    assert not other_draws(Net())
    assert not other_draws(net(lambda: torch.rand(2) * np.pi))
    assert not other_draws(nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.LSTM(2, 2)))


def test_a_draw_changes_the_states() -> None:
    for draw in (random.random, np.random.rand):
        before = states()
        assert not went_on(before)
        draw()
        assert went_on(before)
