"""A training that holds memory of the device, and more of it under `malloc_retention`.

With a fourth argument, `cpu`, its model of 1 MiB stays there.
"""

import os
import sys

import torch
from torch import nn

held_mib, more_mib, count = map(int, sys.argv[1:4])
device = sys.argv[4] if len(sys.argv) > 4 else "laggard"
torch.manual_seed(0)
torch.set_num_threads(1)
if "malloc_retention" in os.environ.get("HASTEN_CHILD", ""):
    held_mib += more_mib
held = torch.empty(held_mib << 20, dtype=torch.uint8, device=device)
net = nn.Linear(512, 512).to(device)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(count):
    x, y = torch.randn(16, 512).to(device), torch.randint(0, 4, (16,)).to(device)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
