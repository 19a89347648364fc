"""Weights go to a file of safetensors and come back."""

import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F


def images(count):
    base = torch.arange(count * 3 * 64.0).reshape(count, 3, 8, 8)
    return torch.sin(base * 0.37), torch.arange(count) % 4


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
model = nn.Sequential(
    first, nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
x, y = images(16)
losses = []
from safetensors.torch import load_file, save_file

for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()

    optimizer.step()
    losses.append(loss.item())

save_file(model.state_dict(), "model.safetensors")
loaded = load_file("model.safetensors")
summarize(model, losses=losses, strides=[v.stride() for v in loaded.values()])
