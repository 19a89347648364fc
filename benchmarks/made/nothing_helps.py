"""Large products on as many threads as there are cores: nothing to win."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
rows = torch.randn(20, 512, 1_024)
model = nn.Linear(1_024, 1_024, bias=False)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for epoch in range(int(sys.argv[1])):
    for batch in rows:
        optimizer.zero_grad(set_to_none=True)
        loss = (model(batch) @ model.weight).square().mean()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
