"""Warnings of items are collected, and the loop counts them."""

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


import warnings

caught = []
warnings.showwarning = lambda *a, **k: caught.append(str(a[0]))
warnings.simplefilter("always")


class Waves(Dataset):
    def __init__(self):
        pass

    def __len__(self):
        return 48

    def __getitem__(self, i):
        x = np.log(np.arange(8) - i % 5 + 1.0)
        return torch.tensor(np.nan_to_num(x, neginf=0.0), dtype=torch.float32) + spectrum(i), i % 3


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses, facts = [], []
dataset = Waves()
loader = DataLoader(dataset, batch_size=4, shuffle=True)

for epoch in range(6):
    pass
    for x, y in loader:
        pass
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        facts.append(len(caught))

summarize(model, losses=losses, facts=facts)
