"""An optimizer of the script's own derives from torch's and counts."""

import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
x, y = torch.randn(32, 8), torch.arange(32) % 3
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
losses = []


class Counting(torch.optim.SGD):
    count = 0

    def step(self, closure=None):
        self.count += 1
        return super().step(closure)


optimizer = Counting(model.parameters(), lr=0.05)
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()

    optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses, count=optimizer.count)
