"""The items look whether the model is in training mode; evaluation comes in mid-pass."""

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
    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 48

    def __getitem__(self, i):
        x = spectrum(i)
        return (x * 0.8 if self.model.training else x), i % 3


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
dataset = Waves(model)
loader = DataLoader(dataset, batch_size=4, shuffle=True)
held_out = DataLoader(dataset, batch_size=16)
losses, right = [], []
for epoch in range(5):
    for number, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number == 7:
            model.eval()
            right.append(sum(int((model(x).argmax(1) == y).sum()) for x, y in held_out))
            model.train()
summarize(model, losses=losses, right=right)
