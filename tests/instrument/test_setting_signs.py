"""Signs of waste: what the collector took, how many numbers are denormal, which modes are on."""

import gc
from weakref import WeakSet

import pytest
import torch
from torch import nn

from hasten.instrument.setting_signs import CollectorClock, denormal_ratio
from hasten.instrument.traits import TraitsReader


@pytest.fixture
def clock():
    gc.disable()
    clock = CollectorClock()
    clock.install()
    yield clock
    clock.remove()
    gc.enable()


def test_the_time_of_collections_is_summed_up(clock) -> None:
    assert clock.spent_ns == 0
    gc.collect()
    first = clock.spent_ns
    assert first > 0
    gc.collect(0)
    assert clock.spent_ns > first


def test_nothing_is_left_in_the_collectors_list() -> None:
    before = list(gc.callbacks)
    clock = CollectorClock()
    clock.install()
    clock.remove()
    assert gc.callbacks == before


def optimizer_of(*values, kind=torch.optim.SGD, **options):
    return kind([nn.Parameter(torch.tensor(value)) for value in values], lr=0.1, **options)


def test_denormal_numbers_are_counted_in_weights_gradients_and_states() -> None:
    optimizer = optimizer_of([1.0, 1e-40, 0.0, -1e-42])
    assert denormal_ratio(WeakSet([optimizer])) == 0.5
    (weight,) = optimizer.param_groups[0]["params"]
    weight.grad = torch.tensor([1e-39, 1.0, 1.0, 1.0])
    assert denormal_ratio(WeakSet([optimizer])) == 3 / 8
    optimizer.state[weight]["momentum_buffer"] = torch.full((4,), 1e-40)
    assert denormal_ratio(WeakSet([optimizer])) == 7 / 12


def test_large_tensors_are_sampled_over_their_whole_length() -> None:
    optimizer = optimizer_of([1.0])
    (weight,) = optimizer.param_groups[0]["params"]
    weight.grad = None
    optimizer.state[weight]["buffer"] = torch.cat(
        [torch.ones(1 << 17), torch.full((1 << 17,), 1e-40)]
    )
    assert denormal_ratio(WeakSet([optimizer])) == pytest.approx(0.5, abs=0.01)


def test_nothing_is_said_of_numbers_that_nobody_updates() -> None:
    assert denormal_ratio(WeakSet()) is None
    assert TraitsReader().read().denormal_ratio is None


@pytest.fixture
def reader():
    reader = TraitsReader()
    before = list(gc.callbacks)
    yield reader
    gc.callbacks[:] = before


def train(reader, model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        reader.called(model, (batch,), {})
        reader.backward(None)
        reader.steps(optimizer)
        reader.ended()


def test_a_child_tells_of_collections_and_debug_modes(reader) -> None:
    train(reader, nn.Linear(4, 4), [torch.ones(2, 3), torch.ones(2, 3), torch.ones(1, 3)])
    found = reader.read()
    assert found.collector.step_s >= 0
    assert found.collector.is_enabled
    assert found.anomaly_ratio == found.profiler_ratio == 0


FLAT, IMAGE = torch.ones(2, 4), torch.ones(1, 1, 2, 2)
UNFLATTENED = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 1, 1))


@pytest.mark.parametrize(
    ("roots", "count"),
    [
        ([(nn.Linear(4, 4), FLAT)], None),
        ([(nn.Sequential(nn.Conv2d(1, 1, 1)), IMAGE)], 4),
        ([(UNFLATTENED, FLAT)], 2),
        ([(nn.Sequential(nn.Conv2d(1, 1, 1)), IMAGE), (UNFLATTENED, FLAT)], 0),
        ([(nn.Sequential(nn.Conv2d(1, 1, 1)), IMAGE), (nn.Linear(4, 4), FLAT)], 0),
    ],
)
def test_a_child_tells_the_dimensions_of_what_is_convolved(reader, roots, count) -> None:
    for module, batch in roots:
        train(reader, module, [batch])
    assert reader.read().model.conv_input_dimension_count == count


def test_a_child_tells_how_often_a_debug_mode_was_on(reader) -> None:
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        train(reader, nn.Linear(1, 1), [torch.ones(1, 1)])
    train(reader, nn.Linear(1, 1), [torch.ones(1, 1)] * 3)
    assert reader.read().anomaly_ratio == 0.25
