"""Training on the test accelerator, whose kernel and copy times come from the environment.

`on_device.py STEPS [--resident | --uncopied | --pinned | --cpu] [--work N | --rows] [--reading]
[--workers N]` prints seconds per step.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("steps", type=int)
parser.add_argument("--resident", action="store_true")
parser.add_argument("--uncopied", action="store_true", help="load batches, but train on others")
parser.add_argument("--pinned", action="store_true")
parser.add_argument("--cpu", action="store_true")
parser.add_argument("--rows", action="store_true")
parser.add_argument("--reading", action="store_true", help="read the loss in each step")
parser.add_argument("--work", type=int, default=0)
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
device = "cpu" if args.cpu else "laggard"


class Worked(Dataset):
    """Items that take some work in Python."""

    def __init__(self) -> None:
        self.values = torch.randn(256, 8)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        scale = 1.0
        for _ in range(args.work):
            scale = scale * 0.999 + 0.001
        return self.values[index] * scale, index % 4


count = 4096 if args.rows else 256
data = Worked() if args.work else TensorDataset(torch.randn(count, 8), torch.arange(count) % 4)
loader = DataLoader(
    data, batch_size=512 if args.rows else 16, shuffle=True, pin_memory=args.pinned,
    num_workers=args.workers, persistent_workers=args.workers > 0,
)  # fmt: skip
net = nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
kept = [(x.to(device), y.to(device)) for x, y in loader] if args.resident or args.uncopied else []
step, started_s, total = 0, 0.0, 0.0
while step < args.steps:
    if step >= 32 and not started_s:
        torch.accelerator.synchronize()
        first, started_s = step, time.perf_counter()
    for x, y in kept if args.resident else loader:
        if args.uncopied:
            x, y = kept[step % len(kept)]  # noqa: PLW2901
        elif not args.resident:
            x, y = x.to(device, non_blocking=args.pinned), y.to(device, non_blocking=args.pinned)  # noqa: PLW2901
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        if args.reading:
            total += loss.item()
        step += 1
torch.accelerator.synchronize()
print((time.perf_counter() - started_s) / (step - first))
