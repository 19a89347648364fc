"""Train, save, and print the losses, how large the gradients were, and how often the host waited.

    python half_training.py DEVICE SIZE [fused]

The loss is multiplied by SIZE in the third step.
"""

import json
import sys

import torch
from torch import nn

kind, size = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(kind)
fused = {"fused": True} if "fused" in sys.argv else {}
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **fused)
x, y = torch.randn(32, 16).to(kind), torch.randint(0, 4, (32,)).to(kind)
losses, norms = [], []
for step in range(12):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y) * (size if step == 2 else 1.0)
    loss.backward()
    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    optimizer.step()
    losses.append(loss.detach())
waits = sys.modules["laggard"].counts()["host_waits"] if "laggard" in sys.modules else 0
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "saved.pt")
print(json.dumps([[float(v) for v in losses], [float(v) for v in norms], waits]))
