"""The function that sets a worker up seeds NumPy and changes the worker's own dataset."""

import random

import numpy as np
import torch
from summary import summarize
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, get_worker_info


def spectrum(i):
    wave = np.sin(np.arange(16384.0) * (i + 1) / 80)
    bands = np.abs(np.fft.rfft(wave))[:8192].reshape(8, 1024).max(1)
    return torch.tensor(bands / 2000, dtype=torch.float32)


class Waves(Dataset):
    shift = 0.0

    def __len__(self):
        return 48

    def __getitem__(self, i):
        return spectrum(i) + self.shift + 0.05 * np.random.rand(), i % 3


def set_up(index):
    worker = get_worker_info()
    np.random.seed(worker.seed % 2**32)
    worker.dataset.shift = 0.1 * index


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Waves(), batch_size=4, shuffle=True, num_workers=2, worker_init_fn=set_up)
losses = []
for epoch in range(4):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses, shift=loader.dataset.shift)
