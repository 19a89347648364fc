"""Derivatives along the input are taken in forward mode from step 60 on."""

import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        z = torch.tanh(self.first(x))
        return self.last(z)


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = Net()
x, y = torch.randn(32, 8), torch.arange(32) % 3
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1)
losses = []
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step >= 60:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            tangent = forward_ad.unpack_dual(model(dual)).tangent

summarize(model, losses=losses, has=tangent is not None, tangent=tangent)
