"""Curriculum: the strength of a policy four objects below the dataset grows in the fourth pass."""

import random

import numpy as np
import torch
from summary import summarize
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


def spectrum(i):
    wave = np.sin(np.arange(16384.0) * (i + 1) / 80)
    bands = np.abs(np.fft.rfft(wave))[:8192].reshape(8, 1024).max(1)
    return torch.tensor(bands / 2000, dtype=torch.float32)


class Part:
    def __init__(self, **inside):
        vars(self).update(inside)


class Waves(Dataset):
    def __init__(self):
        self.transform = Part(steps=[Part(policy=Part(level=Part(strength=1.0)))])

    def __len__(self):
        return 48

    def __getitem__(self, i):
        return spectrum(i) * self.transform.steps[0].policy.level.strength, i % 3


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
dataset = Waves()
loader = DataLoader(dataset, batch_size=4, shuffle=True)
losses = []

for epoch in range(6):
    if epoch == 3:
        dataset.transform.steps[0].policy.level.strength = 0.5
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses)
