"""The loop asks whether detection is on, and whether it looks for NaN, and prints it."""

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
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
modes = []
for step in range(64):
    with torch.autograd.set_detect_anomaly(step >= 32, check_nan=step % 2 == 0):
        modes.append((torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses, modes=sum(a + 2 * b for a, b in modes))
