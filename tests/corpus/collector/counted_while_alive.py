"""A registry of weak references is read after many objects were made."""

import random
import weakref

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F

REGISTRY = weakref.WeakValueDictionary()


class Node:
    def __init__(self, number):
        self.itself = self
        REGISTRY[number] = self


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
x, y = torch.randn(32, 8), torch.arange(32) % 3
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
losses = []
held = [Node(number) for number in range(5)]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
alive = []
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 50:
        held.pop()
        many = [[number] for number in range(500_000)]
        del many
        alive.append(len(REGISTRY))
summarize(model, losses=losses, alive=alive)
