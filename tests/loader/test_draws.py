"""Many draws in one call are the draws one by one."""

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.loader.sources import bulk_draws

KINDS = st.lists(st.none() | st.integers(1, 70000), max_size=5).map(tuple)


def one_by_one(kinds, count, shape=(1,)):
    """The draws as a chain of transforms makes them."""
    rows = [
        [torch.rand(1).item() if n is None else int(torch.randint(0, n, size=shape)) for n in kinds]
        for _ in range(count)
    ]
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in kinds]


@settings(max_examples=60, deadline=None)
@given(KINDS, st.integers(1, 9), st.integers(0, 700), st.sampled_from([(), (1,)]))
def test_values_and_state_are_those_of_single_draws(kinds, count, skipped, shape) -> None:
    torch.manual_seed(11)
    torch.rand(skipped)
    before = torch.get_rng_state()
    expected = one_by_one(kinds, count, shape)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    assert [column.tolist() for column in bulk_draws.draw(kinds, count)] == expected
    assert torch.equal(torch.get_rng_state(), after)


def test_the_draws_of_common_chains_are_made_at_once() -> None:
    with mock.patch.object(bulk_draws, "_at_once", wraps=bulk_draws._at_once) as at_once:
        bulk_draws.draw((9, 9, None), 4)
    assert at_once.call_args_list[-1].args[:2] == ((9, 9, None), 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_another_default_dtype_draws_one_by_one(dtype) -> None:
    torch.set_default_dtype(dtype)
    try:
        torch.manual_seed(1)
        expected = one_by_one((None, 5), 4)
        torch.manual_seed(1)
        assert [column.tolist() for column in bulk_draws.draw((None, 5), 4)] == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_torch_that_draws_in_another_way_is_asked_one_by_one() -> None:
    bulk_draws._proved.cache_clear()
    wrong = [torch.zeros(32)]
    with mock.patch.object(bulk_draws, "_at_once", return_value=wrong):
        torch.manual_seed(1)
        found = bulk_draws.draw((None,), 3)
    bulk_draws._proved.cache_clear()
    torch.manual_seed(1)
    assert [column.tolist() for column in found] == one_by_one((None,), 3)
