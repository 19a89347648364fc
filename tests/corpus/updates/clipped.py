"""The norm is clipped, and how often it was above the limit is counted."""

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
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
above = 0
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    before = [p.grad.clone() for p in model.parameters()]
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3))
    above += norm > 0.3
    changed = sum(not torch.equal(a, p.grad) for a, p in zip(before, model.parameters()))
    assert bool(changed) == (norm > 0.3)
    optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses, above=above)
