"""A 3-D convolution whose weight is pruned through `flatten`."""

import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F


def images(count):
    base = torch.arange(count * 3 * 64.0).reshape(count, 3, 8, 8)
    return torch.sin(base * 0.37), torch.arange(count) % 4


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
model = nn.Sequential(
    first, nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
x, y = images(16)
losses = []
deep = nn.Conv3d(2, 4, 3, padding=1)
head = nn.Linear(4, 4)
model = nn.ModuleList([deep, head])
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
v = torch.sin(torch.arange(16 * 2 * 64.0)).view(16, 2, 4, 4, 4)
for step in range(70):
    loss = F.cross_entropy(head(deep(v).relu().mean((2, 3, 4))), y)
    optimizer.zero_grad()
    loss.backward()

    optimizer.step()
    losses.append(loss.item())
    if step >= 40:
        deep.weight.data.flatten()[::4] = 0

summarize(model, losses=losses, zeros=int((deep.weight == 0).sum()), stride=deep.weight.stride())
