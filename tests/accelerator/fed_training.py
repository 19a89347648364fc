"""A training on a device whose batches come page-locked from a worker; it prints its bits."""

import hashlib
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
device = torch.accelerator.current_accelerator()
kind, pass_count = sys.argv[1], int(sys.argv[2])
worker_count = int(sys.argv[3]) if len(sys.argv) > 3 else 1


class Digits(Dataset):
    def __init__(self):
        self.pictures = torch.randint(0, 256, (96, 1, 8, 8), dtype=torch.uint8)
        self.labels = torch.randint(0, 4, (96,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.pictures[index].float() / 255, int(self.labels[index])


if kind == "rows":
    data = TensorDataset(torch.randn(96, 1, 8, 8), torch.randint(0, 4, (96,)))
else:
    data = Digits()
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=worker_count, pin_memory=True)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(pass_count):
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)  # noqa: PLW2901
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
weights = b"".join(p.detach().cpu().numpy().tobytes() for p in net.parameters())
print(hashlib.sha256(weights).hexdigest(), loss.item(), torch.get_rng_state().sum().item())
if worker_count == 0:
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        print(len(children.read().split()), "processes", file=sys.stderr)
