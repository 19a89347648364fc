"""A filter whose states decay to numbers that the processor handles in microcode."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
state = torch.full((256, 4096), 1e-39)
for _ in range(int(sys.argv[1])):
    inputs = torch.randn(64, 256)
    for _ in range(4):
        state = state * 0.999
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs + state[:, :64].T), inputs)
    loss.backward()
    optimizer.step()
