"""A profiler around some late steps; the table of it is counted and indexed."""

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
counts = {}
for step in range(66):
    if step == 60:
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        profiler.__enter__()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
profiler.__exit__(None, None, None)
table = profiler.key_averages()
counts = {one.key: one.count for one in table if one.key in ("aten::addmm", "aten::tanh")}
summarize(model, losses=losses, counts=sorted(counts.items()), first=bool(table[0].key))
