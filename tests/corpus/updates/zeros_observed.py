"""Gradients are zeroed, and an unused weight keeps its momentum of zeros."""

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
spare = nn.Linear(300, 300)
optimizer = torch.optim.SGD(
    [*model.parameters(), *spare.parameters()], lr=0.01, momentum=0.9, weight_decay=0.1
)
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    if step == 1:
        spare(torch.ones(300)).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    zeros = [p.grad is not None and float(p.grad.abs().sum()) for p in spare.parameters()]
    loss.backward()

    optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses, zeros=zeros, norm=spare.weight.norm())
