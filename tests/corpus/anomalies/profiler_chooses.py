"""A profiler that is always on decides by counted operations which batch is repeated."""

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
repeats = 0
for step in range(40):
    with torch.autograd.profiler.profile() as profiler:
        loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    calls = sum(event.name == "aten::addmm" for event in profiler.function_events)
    for _ in range(calls - 1):
        repeats += 1
        loss = F.cross_entropy(model(-x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses, repeats=repeats)
