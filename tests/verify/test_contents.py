"""What a value holds, and what shakes it."""

import pytest

from hasten.verify.contents import perturb

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_one_changed_bit_changes_each_weight_in_any_precision(kind) -> None:
    weights = [torch.full((64,), 1.5, dtype=kind), torch.arange(4)]
    perturb(weights, scale=2.0**-23, seed=1)
    apart = (weights[0].double() / 1.5 - 1).abs()
    assert (apart > 0).all()
    assert (apart <= 2 * max(2.0**-23, torch.finfo(kind).eps)).all()
    assert torch.equal(weights[1], torch.arange(4))
