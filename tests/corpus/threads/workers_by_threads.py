"""The number of loader workers is the number of threads, and so are their draws."""

import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.randn(8), i % 3


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
x, y = torch.randn(32, 8), torch.arange(32) % 3
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
losses = []
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(4):
    for x, y in DataLoader(Noise(), batch_size=4, num_workers=torch.get_num_threads()):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses)
