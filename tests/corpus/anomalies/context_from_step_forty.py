"""`detect_anomaly()` around steps from step 40 on; NaN gradients are repaired where it raises."""

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
repaired = 0
for step in range(70):
    noise = torch.zeros(32, 8, requires_grad=True)
    loss = F.cross_entropy(model(x + noise), y)
    if step % 10 == 9:
        loss = loss + (noise.norm() if step > 40 else noise.sum()) * 0.1
        loss = loss + (model[0].weight[0, 0] * 0).sqrt()
    optimizer.zero_grad()
    if step >= 40:
        try:
            with torch.autograd.detect_anomaly():
                loss.backward()
        except RuntimeError:
            repaired += 1
    else:
        loss.backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad.nan_to_num_(0.0)
    optimizer.step()
    losses.append(loss.item())
summarize(model, losses=losses, repaired=repaired)
