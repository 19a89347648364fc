"""One buffer holds all batches: it is filled again before the backward pass, past autograd."""

import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F


def images(step):
    base = np.arange(16 * 3 * 64, dtype=np.float32).reshape(16, 3, 8, 8)
    return np.sin(base * (0.37 + step / 100))


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Sigmoid())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.squeeze, self.last = squeeze, nn.Linear(32, 4)

    def forward(self, batch):
        maps = torch.relu(self.second(torch.relu(self.first(batch))))
        self.weights = self.squeeze(maps)
        return self.last(F.adaptive_avg_pool2d(maps * self.weights, 2).flatten(1))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
buffer, labels = images(0), torch.arange(16) % 4
batch = torch.from_numpy(buffer)
losses = []
for step in range(70):
    loss = F.cross_entropy(model(batch), labels)
    if step >= 10:
        buffer[:] = images(step + 1)
    if step >= 40:
        model.weights.data[:, 2] = 0
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())


try:
    changed = torch.from_numpy(images(1))
    loss = model(changed).sum()
    changed.mul_(2)
    loss.backward()
except RuntimeError as error:
    print(error)
summarize(model, losses=losses)
