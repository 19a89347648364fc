"""Torchvision's image folder with its usual transforms."""

import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from summary import summarize
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

for i in range(36):
    pixels = (
        np.sin(np.arange(96 * 96 * 3.0).reshape(96, 96, 3) * (i + 1) / 300) * 127 + 128
    ).astype(np.uint8)
    Path("data", str(i % 3)).mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(Path("data", str(i % 3), f"{i:02}.png"))
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
transform = transforms.Compose(
    [
        transforms.RandomResizedCrop(32),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.5,) * 3, (0.5,) * 3),
    ]
)
loader = DataLoader(datasets.ImageFolder("data", transform), batch_size=4, shuffle=True)
for epoch in range(4):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
summarize(model, losses=losses)
