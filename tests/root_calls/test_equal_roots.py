"""Root modules that are equal have a compiled form each."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from hasten.root_calls.twins import Twins  # noqa: E402


class Equal(torch.nn.Linear):
    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 1


def test_equal_modules_are_watched_one_by_one() -> None:
    twins = Twins(SimpleNamespace(at_once=False), compiler=None)
    models = Equal(2, 2), Equal(2, 2)
    rows = torch.ones(3, 2)
    for model in models:
        twins.call(model, lambda args, kwargs: rows, (rows,), {})
    assert [twins._roots.get(model).call_count for model in models] == [1, 1]
