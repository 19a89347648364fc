"""A parameter group is added at step 40."""

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
optimizer = torch.optim.Adam(model[0].parameters(), lr=0.005)
for step in range(70):
    if step == 40:
        optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.01})
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()

    optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses, states=len(optimizer.state))
