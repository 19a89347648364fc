"""Slow items that draw from a generator of the dataset's own, made in the main process."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self):
        self.draws = np.random.default_rng(0)

    def __len__(self):
        return 640

    def __getitem__(self, index):
        picture = self.draws.normal(size=(64, 64))
        return torch.from_numpy(np.fft.ifft2(np.fft.fft2(picture) ** 2).real).float(), index % 10


torch.manual_seed(0)
loader = DataLoader(Noisy(), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(int(sys.argv[1])):
    for pictures, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
