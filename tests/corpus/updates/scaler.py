"""A gradient scaler on the CPU skips a step with an infinite gradient."""

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
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=20)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scales = []
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if step % 25 == 24:
        model[0].weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    scales.append(scaler.get_scale())
    losses.append(loss.item())

summarize(model, losses=losses, scales=scales)
