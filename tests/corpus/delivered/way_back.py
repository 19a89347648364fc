"""A sample refers to its dataset, and the loop notes losses there."""

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


class Sample:
    def __init__(self, home, i):
        self.home, self.i, self.x, self.y = home, i, spectrum(i) * home.gains[i], i % 3


class Samples(Dataset):
    def __init__(self):
        self.gains = [1.0] * 48

    def __len__(self):
        return 48

    def __getitem__(self, i):
        return Sample(self, i)


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
dataset = Samples()
loader = DataLoader(dataset, batch_size=4, shuffle=True, collate_fn=list)
losses = []
for epoch in range(4):
    for batch in loader:
        x, y = torch.stack([s.x for s in batch]), torch.tensor([s.y for s in batch])
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        for sample in batch:
            sample.home.gains[sample.i] *= 0.9
summarize(model, losses=losses, gains=dataset.gains)
