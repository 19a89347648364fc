"""JPEG files, decoded in each pass and cropped at random."""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        picture = np.asarray(Image.open(self.paths[index]).convert("RGB"))
        top, left = torch.randint(0, 64, (2,)).tolist()
        return torch.from_numpy(picture[top : top + 128, left : left + 128].copy()), index % 10


torch.manual_seed(0)
loader = DataLoader(Pictures(Path("jpegs")), batch_size=20, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 128 * 128, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(int(sys.argv[1])):
    for pictures, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures / 255), labels)
        loss.backward()
        optimizer.step()
