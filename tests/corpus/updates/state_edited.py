"""Moments are halved by hand every twenty steps."""

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
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()

    optimizer.step()
    losses.append(loss.item())
    if step % 20 == 19:
        for state in optimizer.state.values():
            state["exp_avg"].mul_(0.5)
            state["step"] -= 10
summarize(model, losses=losses, steps_of=[float(s["step"]) for s in optimizer.state.values()])
