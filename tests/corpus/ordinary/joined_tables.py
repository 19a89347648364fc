"""Two tables one after the other, by `ConcatDataset`, and a subset of them."""

import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
losses = []
parts = [TensorDataset(torch.randn(48, 64), torch.arange(48) % 3) for _ in range(2)]
loader = DataLoader(Subset(ConcatDataset(parts), range(0, 96, 2)), batch_size=8, shuffle=True)
for epoch in range(4):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses)
