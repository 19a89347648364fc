"""A million annotations as Python objects, and new ones in each step."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
rows = [{"place": [index, index + 1], "label": (index % 10,)} for index in range(400_000)]
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(int(sys.argv[1])):
    chosen = [rows[(step * 2_000 + index) % len(rows)] for index in range(2_000)]
    boxes = [[float(number) for number in row["place"]] for row in chosen]
    kept = [[box, [row]] for box, row in zip(boxes, chosen, strict=True)]
    labels = torch.tensor([row["label"][0] for _, (row,) in kept[:64]])
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(64, 64)), labels)
    loss.backward()
    optimizer.step()
