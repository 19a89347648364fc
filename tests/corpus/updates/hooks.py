"""Hooks before and after the step count and write."""

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
calls = []
optimizer.register_step_pre_hook(lambda *_: calls.append(len(optimizer.state)))
optimizer.register_step_post_hook(lambda *_: model[2].bias.data.zero_())
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()

    optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses, calls=calls)
