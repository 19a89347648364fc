"""A thread of the script asks the loader for batches and puts them on a queue."""

import queue
import random
import threading

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
        return spectrum(i), i % 3


def feed(loader, batches):
    for batch in loader:
        batches.put(batch)
    batches.put(None)


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Waves(), batch_size=4, shuffle=True)
losses = []
for epoch in range(5):
    batches = queue.Queue(maxsize=3)
    thread = threading.Thread(target=feed, args=(loader, batches))
    thread.start()
    while (batch := batches.get()) is not None:
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    thread.join()
summarize(model, losses=losses)
