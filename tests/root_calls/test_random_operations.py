"""Random draws: refused where compiled code would order or place them otherwise."""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from hasten.root_calls.graph import refuse_draws

IMAGES = torch.zeros(2, 3, 4, 4)


def graph(make, *inputs):
    return make_fx(make, tracing_mode="fake")(*inputs)


def once(x):
    return torch.native_dropout(x, 0.5, True)[0]


def twice(x):
    return once(once(x) + 1)


@pytest.mark.parametrize(("version", "refused"), [("2.12.1+cpu", True), ("2.13.0", False)])
def test_two_draws_need_a_torch_that_keeps_their_order(version, refused, monkeypatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    refuse_draws(graph(once, IMAGES))
    if refused:
        with pytest.raises(RuntimeError, match="another order"):
            refuse_draws(graph(twice, IMAGES))
    else:
        refuse_draws(graph(twice, IMAGES))


def test_masks_of_feature_maps_beside_channels_last_are_left_to_plain_torch() -> None:
    last = IMAGES.to(memory_format=torch.channels_last)
    refuse_draws(graph(lambda x: x * 2, last))
    refuse_draws(graph(lambda x: once(x.mean((2, 3))), last))
    refuse_draws(graph(once, IMAGES[:, :, :1, :1].to(memory_format=torch.channels_last)))
    with pytest.raises(RuntimeError, match="channels last"):
        refuse_draws(graph(once, last))
    with pytest.raises(RuntimeError, match="channels last"):
        refuse_draws(graph(lambda x, y: once(x) + y.mean(), IMAGES, last))


@pytest.mark.parametrize("masked", [nn.functional.dropout1d, nn.functional.feature_alpha_dropout])
def test_masks_that_are_drawn_into_memory_made_before_are_left_to_plain_torch(masked) -> None:
    refuse_draws(graph(lambda x: torch.bernoulli(x) + once(x), IMAGES))
    with pytest.raises(RuntimeError, match="before it is drawn"):
        refuse_draws(graph(lambda x: masked(x[..., 0], 0.5, training=True), IMAGES))
