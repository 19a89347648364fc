"""Sequences that a model packs have no padding to compute."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from hasten.instrument.examine import shapes


class Tagger(nn.Module):
    """A model that takes padded rows."""

    def __init__(self, leaves_out):
        super().__init__()
        self.words, self.leaves_out = nn.Embedding(9, 4), leaves_out

    def forward(self, tokens, lengths):
        rows = self.words(tokens)
        if self.leaves_out == "pack":
            return pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False).data
        if self.leaves_out == "nest":
            kept = [row[:count] for row, count in zip(rows, lengths, strict=True)]
            return torch.nested.as_nested_tensor(kept)
        return rows


@pytest.mark.parametrize("leaves_out", ["pack", "nest", "nothing"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_leaves_padding_out_is_seen_and_everything_is_put_back(leaves_out) -> None:
    before = (dict(vars(torch._VF)), torch.nested.as_nested_tensor)
    model, tokens = Tagger(leaves_out), torch.arange(16).reshape(2, 8) % 9
    tokens[0, 3:] = 0
    examiner = shapes.EXAMINER(None)
    examiner.called(model, (tokens, torch.tensor([3, 8])), {})
    model(tokens, torch.tensor([3, 8]))
    examiner.ended()
    found = examiner.end()
    assert found["padding"] == [[16, 5, 0]]
    assert found["packed"] == (leaves_out != "nothing")
    assert before == (dict(vars(torch._VF)), torch.nested.as_nested_tensor)
