"""Operations of the backward pass are counted from step 40 on."""

import random
from collections import Counter
from contextlib import nullcontext

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode


class Counted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


counted = Counted()

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
x, y = torch.randn(4, 8), torch.arange(4)
model = nn.Sequential(nn.Linear(8, 9000), nn.Tanh(), nn.Linear(9000, 8))
weight = model[0].weight
losses = []
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(60):
    loss = F.cross_entropy(model(x), y)
    with counted if step >= 40 else nullcontext():
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1000.0)
    optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses, counts=sorted(counted.counts.items()))
