"""Eight tasks of `torch.jit.fork`, each of which starts a team of threads."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_interop_threads(8)


@torch.jit.script
def branch(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(inputs @ weight)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(256, 256) / 16 for _ in range(8))

    def forward(self, inputs):
        tasks = [torch.jit.fork(branch, inputs, weight) for weight in self.weights]
        return sum(torch.jit.wait(task) for task in tasks)


model = Branches()
optimizer = torch.optim.SGD(model.parameters(), 0.001)
for _ in range(int(sys.argv[1])):
    inputs = torch.randn(512, 256)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), inputs)
    loss.backward()
    optimizer.step()
