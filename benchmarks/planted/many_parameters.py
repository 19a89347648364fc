"""An optimizer without a fused form, over 120 small parameters."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(60)))
optimizer = torch.optim.RMSprop(model.parameters(), 0.001)
for _ in range(int(sys.argv[1])):
    inputs = torch.randn(16, 32)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), inputs)
    loss.backward()
    optimizer.step()
