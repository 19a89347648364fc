"""What a root module is known by from call to call."""

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hasten.root_calls.root import Outputs, Root


def test_weights_that_train_or_lie_otherwise_make_another_kind_of_call() -> None:
    net, root = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), Root(0)
    own = root.state_kind(net)
    net[0].requires_grad_(False)
    frozen = root.state_kind(net)
    net[0].requires_grad_(True)
    net[1].weight.data = net[1].weight.detach().t().contiguous().t()
    turned = root.state_kind(net)
    assert len({own, frozen, turned}) == 3
    net[1].weight = nn.Parameter(torch.zeros(2, 4))
    assert root.state_kind(net) == own
    assert root.trains
    net.requires_grad_(False)
    root.state_kind(net)
    assert not root.trains


def test_watching_what_outputs_are_used_for_leaves_the_numbers_of_the_script_s_hooks() -> None:
    outputs, before = Outputs(lambda _: None), RemovableHandle.next_id
    outputs.follow("kind", torch.ones(2, requires_grad=True) * 2, plain=True)
    assert RemovableHandle.next_id == before
