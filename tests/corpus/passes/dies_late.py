"""An item raises in the fourth pass, and the script ends with its exit code."""

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
        return spectrum(i), labels[i]


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
labels = {i: i % 3 for i in range(48)}
loader = DataLoader(Waves(), batch_size=4)
losses = []
for epoch in range(5):
    if epoch == 3:
        summarize(model, losses=losses)
        del labels[30]
    for x, y in loader:
        print("step", len(losses), flush=True)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
