"""Gradients of three batches are added up before a step."""

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
    if step % 3 == 0:
        optimizer.zero_grad(set_to_none=False)
    loss.backward()

    if step % 3 == 2:
        optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses)
