"""Noise of the shape of feature maps, drawn in each of torch's ways."""

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


def noisy(z):
    z = z + 0.01 * torch.randn_like(z) + 0.01 * torch.empty_like(z).uniform_()
    z = z * torch.bernoulli(torch.full_like(z, 0.9)) + 0.01 * torch.normal(torch.zeros_like(z), 1.0)
    return F.rrelu(z, training=True) + 0.01 * F.gumbel_softmax(z, dim=1)


for step in range(70):
    loss = F.cross_entropy(model[4:](noisy(model[:4](x))), y)
    optimizer.zero_grad()
    loss.backward()

    optimizer.step()
    losses.append(loss.item())


summarize(model, losses=losses)
