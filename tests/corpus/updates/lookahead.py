"""Slow weights every five steps."""

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
optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
slow = [p.detach().clone() for p in model.parameters()]
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()

    optimizer.step()
    losses.append(loss.item())
    if step % 5 == 4:
        with torch.no_grad():
            for p, s in zip(model.parameters(), slow):
                s.lerp_(p, 0.5)
                p.copy_(s)
summarize(model, losses=losses)
