"""An iterable dataset that shuffles in a window and remembers where it stopped."""

import random

import numpy as np
import torch
from summary import summarize
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset


def spectrum(i):
    wave = np.sin(np.arange(16384.0) * (i + 1) / 80)
    bands = np.abs(np.fft.rfft(wave))[:8192].reshape(8, 1024).max(1)
    return torch.tensor(bands / 2000, dtype=torch.float32)


class Stream(IterableDataset):
    def __init__(self):
        self.place = 0

    def __iter__(self):
        window = []
        for _ in range(40):
            self.place += 1
            window.append(self.place % 48)
            if len(window) == 8:
                i = window.pop(random.randrange(8))
                yield spectrum(i), i % 3


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
dataset = Stream()
loader = DataLoader(dataset, batch_size=4)
losses = []
for epoch in range(6):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses, place=dataset.place)
