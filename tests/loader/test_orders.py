"""orders: the batches of indices that torch's samplers give, and each draw when they make it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from hasten.loader import orders
from hasten.loader.orders import fast_indices


@st.composite
def recipes(draw):
    """Return a function that makes the sampler; its own generator starts the same each time."""
    count, size = draw(st.integers(1, 70)), draw(st.integers(1, 40))
    drop_last, seeded = draw(st.booleans()), draw(st.booleans())
    in_order = draw(st.booleans())

    def make():
        generator = torch.Generator().manual_seed(5) if seeded else None
        if in_order:
            inner = SequentialSampler(list(range(count)))
        else:
            inner = RandomSampler(list(range(count)), generator=generator)
        return BatchSampler(inner, size, drop_last)

    return make


def story(iterator, generators):
    """Return each batch with the states of the generators before and after it, to the end."""
    told = [[generator.get_state().tolist() for generator in generators]]
    for batch in iterator:
        told.append(batch if isinstance(batch, list) else batch.tolist())
        told.append([generator.get_state().tolist() for generator in generators])
    return [*told, [generator.get_state().tolist() for generator in generators]]


def both(make, change=lambda sampler, number: None):
    told = []
    for begin in (iter, fast_indices):
        torch.manual_seed(3)
        sampler = make()
        own = getattr(sampler.sampler, "generator", None)
        iterator = begin(sampler)
        if iterator is None and not orders._proved(sampler.drop_last):
            pytest.skip("this torch heeds growing batches in another way")
        assert iterator is not None

        def changing(sampler=sampler, iterator=iterator):
            for number, batch in enumerate(iterator):
                yield batch
                change(sampler, number)

        told.append(story(changing(), [torch.default_generator, *([own] if own else [])]))
    return told


@given(recipes())
@settings(max_examples=150, deadline=None)
def test_batches_and_the_states_of_generators_after_each_are_those_of_torch(make) -> None:
    stock, ours = both(make)
    assert ours == stock


@given(recipes(), st.integers(0, 3), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_batches_that_grow_in_mid_pass_are_heeded_as_torch_does(make, at, size) -> None:
    def grow(sampler, number):
        if number == at:
            sampler.batch_size = size

    stock, ours = both(make, grow)
    assert ours == stock


@given(recipes(), st.integers(0, 3), st.integers(-3, 5))
@settings(max_examples=150, deadline=None)
def test_data_that_grows_or_shrinks_in_mid_pass_is_heeded_as_torch_does(make, at, more) -> None:
    def change(sampler, number):
        rows = sampler.sampler.data_source
        if number == at:
            rows[:] = rows[:more] if more < 0 else rows + [0] * more

    stock, ours = both(make, change)
    assert ours == stock


def test_long_orders_cross_every_border_inside(monkeypatch) -> None:
    monkeypatch.setattr(orders, "_CHUNK_COUNT", 50)
    monkeypatch.setattr(orders, "_AHEAD_COUNT", 2)
    for make in (
        lambda: BatchSampler(SequentialSampler(range(1234)), 7, drop_last=False),
        lambda: BatchSampler(RandomSampler(range(1234)), 7, drop_last=True),
    ):
        stock, ours = both(make)
        assert ours == stock


def test_nothing_is_drawn_before_the_first_batch_is_asked_for() -> None:
    sampler = BatchSampler(RandomSampler(range(9)), 2, drop_last=False)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    iterator = fast_indices(sampler)
    assert torch.equal(torch.get_rng_state(), before)
    next(iterator)
    assert not torch.equal(torch.get_rng_state(), before)


def test_the_first_use_leaves_the_scripts_generator_alone() -> None:
    orders._proved.cache_clear()
    before = torch.get_rng_state()
    assert orders._proved(False)
    assert torch.equal(torch.get_rng_state(), before)


def test_batches_are_tensors_of_row_numbers() -> None:
    loader = DataLoader(TensorDataset(torch.randn(9, 2)), batch_size=4, shuffle=True)
    batches = list(fast_indices(loader.batch_sampler))
    assert [batch.dtype for batch in batches] == [torch.int64] * 3
    assert sorted(torch.cat(batches).tolist()) == list(range(9))


class Mine(RandomSampler):
    """A subclass may do anything."""


class MyBatches(BatchSampler):
    """A subclass may do anything."""


@pytest.mark.parametrize(
    "sampler",
    [
        SequentialSampler(range(4)),
        [[0, 1], [2, 3]],
        BatchSampler([0, 1, 2], 2, drop_last=False),
        BatchSampler(Mine(range(4)), 2, drop_last=False),
        BatchSampler(SubsetRandomSampler([1, 2]), 2, drop_last=False),
        BatchSampler(WeightedRandomSampler([1.0], 2), 2, drop_last=False),
        BatchSampler(RandomSampler(range(4), replacement=True), 2, drop_last=False),
        BatchSampler(RandomSampler(range(4), num_samples=2), 2, drop_last=False),
        MyBatches(SequentialSampler(range(4)), 2, drop_last=False),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_other_samplers_are_left_to_themselves(sampler) -> None:
    assert fast_indices(sampler) is None


def test_a_script_that_changes_what_samplers_do_is_left_alone(monkeypatch) -> None:
    sampler = BatchSampler(RandomSampler(range(4)), 2, drop_last=False)
    for name in ("__iter__", "num_samples"):
        with monkeypatch.context() as patched:
            own = property(lambda self: 2) if name == "num_samples" else lambda self: iter([3])
            patched.setattr(RandomSampler, name, own)
            assert fast_indices(sampler) is None
    monkeypatch.setattr(orders, "_proved", lambda drop_last: False)
    assert fast_indices(sampler) is None


def test_an_empty_dataset_ends_at_once() -> None:
    stock, ours = both(lambda: BatchSampler(SequentialSampler([]), 2, drop_last=False))
    assert ours == stock


def test_on_a_default_device_that_is_no_cpu_torch_s_samplers_draw_themselves() -> None:
    sampler = BatchSampler(SequentialSampler(range(5)), 2, drop_last=False)
    with torch.device("meta"):
        assert fast_indices(sampler) is None
    assert fast_indices(sampler) is not None
