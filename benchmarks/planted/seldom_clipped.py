"""Large gradients under a limit that their norm seldom reaches."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(int(sys.argv[1])):
    inputs = torch.randn(4, 2048)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), inputs)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    optimizer.step()
