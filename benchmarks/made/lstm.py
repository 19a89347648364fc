"""An LSTM that reads sequences of tokens."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
tokens = torch.randint(2_000, (20, 35 * 60 + 1))
embed, lstm, head = nn.Embedding(2_000, 100), nn.LSTM(100, 128), nn.Linear(128, 2_000)
model = nn.ModuleList([embed, lstm, head])
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for epoch in range(int(sys.argv[1])):
    state = None
    for start in range(0, tokens.shape[1] - 1, 35):
        read, wanted = tokens[:, start : start + 35], tokens[:, start + 1 : start + 36]
        out, state = lstm(embed(read.T), state)
        state = tuple(part.detach() for part in state)
        loss = nn.functional.cross_entropy(head(out).flatten(0, 1), wanted.T.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    print(epoch, loss.item())
