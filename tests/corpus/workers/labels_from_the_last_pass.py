"""Pseudo labels that the loop writes are seen by the workers of the next pass."""

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


class Waves(Dataset):
    def __init__(self):
        self.labels = [i % 3 for i in range(48)]

    def __len__(self):
        return 48

    def __getitem__(self, i):
        return i, spectrum(i), self.labels[i]


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
dataset = Waves()
loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2)
losses = []
for epoch in range(5):
    for rows, x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        for i, label in zip(rows.tolist(), model(x).argmax(1).tolist()):
            if i % 5 == epoch:
                dataset.labels[i] = label
summarize(model, losses=losses, labels=dataset.labels)
