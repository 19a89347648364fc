"""From step 60 on the loss has a gradient penalty of second order."""

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
    x.requires_grad_(step >= 60)
    loss = F.cross_entropy(model(x), y)
    if step >= 60:
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        loss = loss + slope.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses)
