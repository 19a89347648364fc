"""Which memory layouts torch would take for which."""

import torch
from torch.utils.hooks import RemovableHandle

from hasten.root_calls.layouts import _hook, _in_order


def test_images_of_one_channel_can_be_channels_last_all_the_same() -> None:
    assert _in_order(torch.zeros(4, 1, 28, 28))
    assert _in_order(torch.zeros(4, 28, 28).unsqueeze(1))
    assert not _in_order(torch.zeros(4, 28, 28, 1).permute(0, 3, 1, 2))
    assert not _in_order(torch.zeros(4, 28, 28, 3).permute(0, 3, 1, 2))


def test_hooks_that_the_script_registers_keep_their_numbers() -> None:
    tensor, before = torch.ones(1, 2, 2, 2, requires_grad=True) * 2, RemovableHandle.next_id
    _hook(tensor)
    assert RemovableHandle.next_id == before
