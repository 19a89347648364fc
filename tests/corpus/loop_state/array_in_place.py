"""Curriculum: one element of a large array is written in place while a pass runs."""

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


gains = np.ones((4, 100_000))


class Waves(Dataset):
    def __init__(self):
        self.gains = gains

    def __len__(self):
        return 48

    def __getitem__(self, i):
        return spectrum(i) * float(self.gains[i % 4, 70_001]), i % 3


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
dataset = Waves()
loader = DataLoader(dataset, batch_size=4, shuffle=True)
losses = []

for epoch in range(6):
    for x, y in loader:
        if len(losses) == 45:
            gains[:, 70_001] = 0.5
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses)
