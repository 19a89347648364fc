"""A recurrent cell written by hand: many small operations, one time step after another."""

import sys

import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.of_input = nn.Linear(width, 4 * width)
        self.of_state = nn.Linear(width, 4 * width)

    def forward(self, sequence):
        state = memory = sequence.new_zeros(len(sequence), self.width)
        for values in sequence.unbind(1):
            gates = self.of_input(values) + self.of_state(state)
            enter, forget, leave, new = gates.chunk(4, 1)
            memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(new)
            state = torch.sigmoid(leave) * torch.tanh(memory)
        return state


torch.manual_seed(0)
model = Cell(64)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(int(sys.argv[1])):
    sequence = torch.randn(32, 16, 64)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(sequence), sequence.mean(1))
    loss.backward()
    optimizer.step()
