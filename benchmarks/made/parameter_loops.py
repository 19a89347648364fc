"""Many small parameters: Adam, a norm and an average in loops over them."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32)) for _ in range(40)))
average = [parameter.detach().clone() for parameter in model.parameters()]
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
rows = torch.randn(1_600, 32)
for epoch in range(int(sys.argv[1])):
    for start in range(0, len(rows), 16):
        optimizer.zero_grad()
        loss = model(rows[start : start + 16]).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, parameter in zip(average, model.parameters(), strict=True):
                kept.mul_(0.99).add_(parameter, alpha=0.01)
    print(epoch, loss.item())
