"""Anomaly detection is meant to end the run at the first NaN, with the exit code of an error."""

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
torch.autograd.set_detect_anomaly(True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    if step == 61:
        summarize(model, losses=losses)
        loss = loss + (model[0].weight[0, 0] * 0).sqrt()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("trained to the end")
