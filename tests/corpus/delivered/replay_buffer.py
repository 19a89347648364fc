"""Delivered samples stay in a buffer; the dataset goes on changing its own objects."""

import collections
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
    def __init__(self, i):
        self.i, self.x, self.y = i, spectrum(i), i % 3


class Samples(Dataset):
    def __init__(self):
        self.samples = [Sample(i) for i in range(48)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
dataset = Samples()
loader = DataLoader(dataset, batch_size=4, shuffle=True, collate_fn=list)
losses, buffer = [], collections.deque(maxlen=8)
for epoch in range(4):
    for sample in dataset.samples:
        sample.x = sample.x * 0.9
    for batch in loader:
        every = [*batch, *buffer]
        x, y = torch.stack([s.x for s in every]), torch.tensor([s.y for s in every])
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        buffer.extend(batch)
summarize(model, losses=losses)
