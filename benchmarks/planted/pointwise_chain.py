"""A model of many elementwise operations over large tensors."""

import sys

import torch
from torch import nn


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.Parameter(torch.ones(12, 512))

    def forward(self, values):
        for scale in self.scales:
            values = torch.tanh(values * scale + 0.1) + torch.sigmoid(values) * 0.5
        return values


torch.manual_seed(0)
model = Chain()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(int(sys.argv[1])):
    inputs = torch.randn(512, 512)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), inputs)
    loss.backward()
    optimizer.step()
