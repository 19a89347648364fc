"""Train on random rows, by torch.distributed where there are several processes."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(0)
rows = TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
sampler = None
if world > 1:
    dist.init_process_group("gloo")
    sampler = DistributedSampler(rows)
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(int(sys.argv[1])):
    for inputs, labels in DataLoader(rows, batch_size=32, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    if sys.argv[2:] == ["fails"] and rank == world - 1:
        sys.exit(7)
weights = sum(float(weight.detach().double().sum()) for weight in model.parameters())
node, waits = map(os.environ.get, ("SLURMD_NODENAME", "OMP_WAIT_POLICY"))
print(rank, world, node, waits, f"{weights:.12f}", flush=True)
if world > 1:
    dist.destroy_process_group()
