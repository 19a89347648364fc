"""An average of weights that loops over 120 small parameters."""

import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(60)))
averaged = AveragedModel(model, avg_fn=get_ema_avg_fn(0.999))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(int(sys.argv[1])):
    inputs = torch.randn(16, 64)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), inputs)
    loss.backward()
    optimizer.step()
    averaged.update_parameters(model)
