"""Zeroed gradients are looked for where they were."""

import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
x, y = torch.randn(4, 8), torch.arange(4)
model = nn.Sequential(nn.Linear(8, 9000), nn.Tanh(), nn.Linear(9000, 8))
weight = model[0].weight
losses = []
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
stayed = []
for step in range(60):
    place = None if weight.grad is None else weight.grad.data_ptr()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    stayed.append(place == weight.grad.data_ptr())

summarize(model, losses=losses, stayed=sum(stayed))
