"""The loop holds the gradients of the first step and looks whether they stay the same objects."""

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
held, same = [], 0
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    same += sum(p.grad is one for p, one in zip(model.parameters(), held))
    held = held or [p.grad for p in model.parameters()]
    optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses, same=same, held=held[0])
