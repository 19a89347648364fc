"""A temperature that the forward pass asks for is cached when it is first asked for."""

import random
from functools import lru_cache

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F

SETTINGS = {"temperature": 2.0}


@lru_cache
def temperature():
    return SETTINGS["temperature"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        z = torch.tanh(self.first(x))
        return self.last(z) / temperature()


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = Net()
x, y = torch.randn(32, 8), torch.arange(32) % 3
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1)
losses = []
for step in range(70):
    if step == 1:
        SETTINGS["temperature"] = 1.0
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses, asked=temperature.cache_info().misses)
