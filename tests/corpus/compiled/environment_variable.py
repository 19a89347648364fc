"""The forward pass asks an environment variable, which changes at step 40."""

import os
import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        z = torch.tanh(self.first(x))
        return self.last(z) / float(os.environ.get("TEMPERATURE", "1"))


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = Net()
x, y = torch.randn(32, 8), torch.arange(32) % 3
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1)
losses = []
for step in range(70):
    if step == 40:
        os.environ["TEMPERATURE"] = "2"
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses)
