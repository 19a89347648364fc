"""A sampler with a generator of its own looks at the last loss."""

import random

import numpy as np
import torch
from summary import summarize
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler


def spectrum(i):
    wave = np.sin(np.arange(16384.0) * (i + 1) / 80)
    bands = np.abs(np.fft.rfft(wave))[:8192].reshape(8, 1024).max(1)
    return torch.tensor(bands / 2000, dtype=torch.float32)


class Waves(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        return spectrum(i), i % 3


class Hard(Sampler):
    def __init__(self, losses):
        self.rng, self.losses = random.Random(2), losses

    def __len__(self):
        return 48

    def __iter__(self):
        for _ in range(48):
            easy = not self.losses or self.losses[-1] < 1.0
            yield self.rng.randrange(24) if easy else 24 + self.rng.randrange(24)


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
loader = DataLoader(Waves(), batch_size=4, sampler=Hard(losses))
for epoch in range(5):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses, after=loader.sampler.rng.random())
