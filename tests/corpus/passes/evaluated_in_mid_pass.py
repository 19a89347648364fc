"""A flag of the dataset is turned over for an evaluation in the middle of a pass."""

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
    training = True

    def __len__(self):
        return 48

    def __getitem__(self, i):
        noise = 0.05 * torch.randn(8) if self.training else 0.0
        return spectrum(i) + noise, i % 3


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
dataset = Waves()
loader, test = DataLoader(dataset, batch_size=4, shuffle=True), DataLoader(dataset, batch_size=16)
losses, scores = [], []
for epoch in range(5):
    for number, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number == 6:
            dataset.training = False
            scores.append(sum(float(F.cross_entropy(model(x), y)) for x, y in test))
            dataset.training = True
summarize(model, losses=losses, scores=scores)
