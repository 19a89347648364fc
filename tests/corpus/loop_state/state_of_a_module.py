"""The loop loads another state into a module that the items call."""

import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


def spectrum(i):
    wave = np.sin(np.arange(16384.0) * (i + 1) / 80)
    bands = np.abs(np.fft.rfft(wave))[:8192].reshape(8, 1024).max(1)
    return torch.tensor(bands / 2000, dtype=torch.float32)


class Augment(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("gain", torch.full((8,), 0.7))

    def forward(self, x):
        return x * self.gain


class Waves(Dataset):
    def __init__(self):
        self.augment = Augment()

    def __len__(self):
        return 48

    def __getitem__(self, i):
        return self.augment(spectrum(i)), i % 3


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses, facts = [], []
dataset = Waves()
loader = DataLoader(dataset, batch_size=4, shuffle=True)
later = {"gain": torch.full((8,), 0.4)}
for epoch in range(6):
    pass
    for x, y in loader:
        if len(losses) == 45:
            dataset.augment.load_state_dict(later)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        pass

summarize(model, losses=losses, facts=facts)
