"""The loop begins a pass again, with the generators of its beginning."""

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
        return spectrum(i) + 0.05 * torch.randn(8), i % 3


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Waves(), batch_size=4, shuffle=True)
losses, rewinds = [], 0
for epoch in range(4):
    state = torch.get_rng_state()
    for number, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number == 5 and epoch % 2:
            torch.set_rng_state(state)
            rewinds += 1
            break
summarize(model, losses=losses, rewinds=rewinds)
