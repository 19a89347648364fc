"""Gradients are views of one flat bucket, which the loop clips as a whole."""

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
bucket = torch.zeros(sum(p.numel() for p in model.parameters()))
place = 0
for p in model.parameters():
    p.grad = bucket[place : place + p.numel()].view_as(p)
    place += p.numel()
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    bucket.zero_()
    loss.backward()
    bucket.clamp_(-0.01, 0.01)
    optimizer.step()
    losses.append(loss.item())

summarize(model, losses=losses, bucket=bucket[::20])
