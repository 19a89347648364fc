"""Names and labels come from a CSV file that is read once, images from files."""

import random
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from summary import summarize
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Listed(Dataset):
    def __init__(self, file):
        table = pd.read_csv(file)
        self.names, self.labels = table["name"].tolist(), table["label"].tolist()

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        image = Image.open(self.names[i]).convert("RGB").resize((32, 32))
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return x, self.labels[i]


for i in range(36):
    pixels = (
        np.sin(np.arange(96 * 96 * 3.0).reshape(96, 96, 3) * (i + 1) / 300) * 127 + 128
    ).astype(np.uint8)
    Path("data", str(i % 3)).mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(Path("data", str(i % 3), f"{i:02}.png"))
names = sorted(map(str, Path("data").glob("*/*.png")))
pd.DataFrame({"name": names, "label": [i % 3 for i in range(36)]}).to_csv("labels.csv")
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(32, 3),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
losses = []
loader = DataLoader(Listed("labels.csv"), batch_size=4, shuffle=True)
for epoch in range(4):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses)
