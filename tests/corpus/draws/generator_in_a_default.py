"""A random generator is the default of an argument."""

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


def noisy(x, *, rng=np.random.RandomState(2)):
    return x + 0.1 * float(rng.rand())


class Waves(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        return noisy(spectrum(i)), i % 3


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
dataset = Waves()
loader = DataLoader(dataset, batch_size=4, shuffle=True)
losses = []
for epoch in range(5):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


summarize(model, losses=losses, after=float(noisy.__kwdefaults__["rng"].rand()))
