"""A `TensorDataset` with shuffling."""

import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
losses = []
loader = DataLoader(
    TensorDataset(torch.randn(96, 64), torch.arange(96) % 3), batch_size=8, shuffle=True
)
for epoch in range(4):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses)
