"""A network of two layers, four rows a batch."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
rows, labels = torch.randn(2_000, 20), torch.randint(3, (2_000,))
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for epoch in range(int(sys.argv[1])):
    total = 0.0
    for start in range(0, len(rows), 4):
        loss = nn.functional.cross_entropy(
            model(rows[start : start + 4]), labels[start : start + 4]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total)
