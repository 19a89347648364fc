"""The loop counts the instances of a class of its own."""

import gc
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


class Note:
    def __init__(self):
        self.inside = []


notes, counts = [Note(), Note()], []
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 25 == 0:
        notes.append(Note())
        counts.append(sum(type(one) is Note for one in gc.get_objects()))
summarize(model, losses=losses, counts=counts)
