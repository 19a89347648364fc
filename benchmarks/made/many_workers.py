"""Twelve workers for small items."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.rows = np.random.default_rng(0).normal(size=(4_000, 16)).astype(np.float32)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"row": np.tanh(self.rows[index]), "label": index % 4}


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Rows(), batch_size=40, shuffle=True, num_workers=12)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(int(sys.argv[1])):
        for batch in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["row"]), batch["label"])
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())
