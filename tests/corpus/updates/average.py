"""An average of the weights by `AveragedModel` with torch's averaging function, from step 20 on."""

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
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
average = AveragedModel(model, avg_fn=get_ema_avg_fn(0.9))
for step in range(70):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()

    optimizer.step()
    losses.append(loss.item())
    if step >= 20:
        average.update_parameters(model)
summarize(model, losses=losses, count=int(average.n_averaged), averaged=average.module[0].weight)
