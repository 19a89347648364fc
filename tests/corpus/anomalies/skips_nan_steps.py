"""Anomaly detection catches a NaN in the backward pass, and the loop skips that step."""

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
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
skipped = 0
for step in range(70):
    scale = torch.tensor(0.0 if step % 15 == 14 else 1.0, requires_grad=True)
    loss = (
        F.cross_entropy(model(x * scale.sqrt() / scale.sqrt().clamp_min(1e-30)), y)
        + scale.sqrt() * 0
    )
    optimizer.zero_grad()
    try:
        loss.backward()
    except RuntimeError as error:
        assert "nan" in str(error)
        skipped += 1
        continue
    optimizer.step()
    losses.append(loss.item())
summarize(model, losses=losses, skipped=skipped)
