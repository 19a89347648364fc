"""The collector is called by a name that was imported first."""

import random
from gc import collect

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F


class Node:
    def __init__(self):
        self.itself = self
        self.number = 0


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
x, y = torch.randn(32, 8), torch.arange(32) % 3
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
losses = []
held = [Node() for _ in range(5)]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
gone = []
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 40:
        held.clear()
        gone.append(collect() >= 5)
summarize(model, losses=losses, gone=gone)
