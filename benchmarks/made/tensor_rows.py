"""Rows of a TensorDataset, 128 a batch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(20_000, 32), torch.randint(10, (20_000,)))
loader = DataLoader(data, batch_size=128, shuffle=True)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for epoch in range(int(sys.argv[1])):
    for rows, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
