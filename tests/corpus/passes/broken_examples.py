"""Some items raise; the loop catches it and goes on with the next batch."""

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
    failures = 0

    def __len__(self):
        return 48

    def __getitem__(self, i):
        if i % 13 == 5:
            Waves.failures += 1
            raise ValueError(f"example {i} is broken")
        return spectrum(i), i % 3


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Waves(), batch_size=4, shuffle=True)
losses, told = [], []
for epoch in range(4):
    batches = iter(loader)
    while True:
        try:
            x, y = next(batches)
        except StopIteration:
            break
        except ValueError as error:
            told.append(str(error))
            continue
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses, told=told, failures=Waves.failures)
