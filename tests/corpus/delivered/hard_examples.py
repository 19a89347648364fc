"""Hard example mining: `collate_fn=list`, and the loop writes each record's loss into it."""

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


class Records(Dataset):
    def __init__(self):
        self.records = [{"i": i, "x": spectrum(i), "y": i % 3, "hardness": 1.0} for i in range(48)]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        return self.records[i]


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
dataset = Records()
loader = DataLoader(dataset, batch_size=4, shuffle=True, collate_fn=list)
losses = []
for epoch in range(5):
    for batch in loader:
        x, y = torch.stack([r["x"] for r in batch]), torch.tensor([r["y"] for r in batch])
        each = F.cross_entropy(model(x), y, reduction="none")
        loss = (each * torch.tensor([r["hardness"] for r in batch])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        for record, value in zip(batch, each.tolist()):
            record["hardness"] = round(value, 1)
summarize(model, losses=losses, hardness=sum(r["hardness"] for r in dataset.records))
