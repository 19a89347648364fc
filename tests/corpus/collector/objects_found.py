"""The loop finds all linear layers among the objects of the collector and clamps them."""

import gc
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
found = 0
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step in (40, 55):
        for one in gc.get_objects():
            if type(one) is nn.Linear:
                one.weight.data.clamp_(-0.2, 0.2)
                found += 1
summarize(model, losses=losses, found=found)
