"""The loop holds the moments and checks that the optimizer writes into the same memory."""

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
    if step == 5:
        held = optimizer.state[model[0].weight]["exp_avg"]
summarize(model, losses=losses, held=held, same=held is optimizer.state[model[0].weight]["exp_avg"])
