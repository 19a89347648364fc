"""Sentences are encoded by a vocabulary and padded by a collate function."""

import random

import numpy as np
import torch
from summary import summarize
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, count):
        self.words = [[f"w{(i * k) % 41}" for k in range(1, 40 + i % 20)] for i in range(count)]
        self.vocabulary = {
            word: n for n, word in enumerate(sorted({w for s in self.words for w in s}))
        }

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return torch.tensor([self.vocabulary[word] for word in self.words[i]]), i % 3


def padded(samples):
    rows = nn.utils.rnn.pad_sequence([x for x, _ in samples], batch_first=True)
    return rows, torch.tensor([y for _, y in samples])


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
dataset = Sentences(60)
model = nn.Sequential(nn.EmbeddingBag(len(dataset.vocabulary), 16), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
loader = DataLoader(dataset, batch_size=4, shuffle=True, collate_fn=padded)
for epoch in range(4):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses)
