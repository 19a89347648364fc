"""Objects in cycles from before training are dropped at step 40 and collected by hand."""

import gc
import random
import weakref

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


class Node:
    def __init__(self):
        self.itself = self


held = [Node() for _ in range(5)]
weak, gone = [weakref.ref(one) for one in held], []
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 40:
        held.clear()
        gc.collect()
        gone.append(sum(one() is None for one in weak))
summarize(model, losses=losses, gone=gone)
