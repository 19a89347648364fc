"""A training whose kernels take longer than the host needs to ask for them."""

import sys
import time

import torch
from torch import nn

mode, count = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
net = nn.Linear(8, 4).to("laggard")
optimizer = torch.optim.SGD(net.parameters(), 0.01)
batches = [(torch.randn(16, 8), torch.randint(0, 4, (16,))) for _ in range(8)]
if mode == "resident":
    batches = [(x.to("laggard"), y.to("laggard")) for x, y in batches]
step = 0
while step < count:
    if step == len(batches):  # what the first steps take once does not count
        torch.accelerator.synchronize()
        started_s = time.perf_counter()
    for x, y in batches:
        if mode == "reading":
            x, y = x.to("laggard"), y.to("laggard")  # noqa: PLW2901
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        step += 1
torch.accelerator.synchronize()
print((time.perf_counter() - started_s) / (step - len(batches)))
