"""A layer is replaced at step 60."""

import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = Net()
x, y = torch.randn(32, 8), torch.arange(32) % 3
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
for step in range(70):
    if step == 60:
        model.first = nn.Linear(8, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses)
