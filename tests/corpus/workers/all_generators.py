"""Items in two workers draw from all three generators, and the loop draws, too."""

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
    def __len__(self):
        return 48

    def __getitem__(self, i):
        gain = random.uniform(0.9, 1.1) + 0.1 * np.random.rand()
        return spectrum(i) * gain + 0.01 * torch.randn(8), i % 3


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Waves(), batch_size=4, shuffle=True, num_workers=2)
losses = []
for epoch in range(4):
    for x, y in loader:
        x = F.dropout(x, 0.2)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses)
