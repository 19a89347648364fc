"""A training that holds memory of the device, and more of it under `malloc_retention`."""

import os
import sys

import torch
from torch import nn

held_mib, more_mib, count = map(int, sys.argv[1:])
torch.manual_seed(0)
torch.set_num_threads(1)
if "malloc_retention" in os.environ.get("HASTEN_CHILD", ""):
    held_mib += more_mib
held = torch.empty(held_mib << 20, dtype=torch.uint8, device="laggard")
net = nn.Linear(8, 4).to("laggard")
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(count):
    x, y = torch.randn(16, 8).to("laggard"), torch.randint(0, 4, (16,)).to("laggard")
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
