"""Weights go over to float64 at step 40, their momenta do not."""

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
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(60):
    if step == 40:
        model.double()
        x = x.double()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
momenta = [state["momentum_buffer"].dtype for state in optimizer.state.values()]
summarize(model, losses=losses, momenta=momenta)
