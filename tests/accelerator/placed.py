"""Scripts for the CPU, as people write them; `python placed.py SCENE` prints what they print.

Nothing here speaks of a device, but for the last line: where the weights are.
"""

import copy
import json
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def tell(model, *numbers):
    print(json.dumps([round(float(number), 4) for number in numbers]))
    print(next(model.parameters()).device.type)


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        # Without a bias: the gradient of one before a norm is nothing but rounding.
        self.conv, self.norm = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


def loader():
    data = TensorDataset(torch.randn(48, 1, 8, 8), torch.randint(0, 3, (48,)))
    return DataLoader(data, batch_size=8, shuffle=True)


def pictures():
    """An epoch loop with all that people do around one."""
    model, batches = Pictures(), loader()
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, totals = [], torch.zeros(1)
    for epoch in range(3):
        model.train()
        for x, y in batches:
            optimizer.zero_grad()
            output = model(x)
            loss = functional.cross_entropy(output, y)
            loss = loss + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            with torch.no_grad():
                for name, p in model.named_parameters():
                    shadow[name].mul_(0.9).add_(p, alpha=0.1)
            losses.append(loss.item())
            totals += loss.detach()
        model.eval()
        with torch.no_grad():
            right = sum((model(x).argmax(1) == y).sum().item() for x, y in batches)
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(states, "last.pt")
    saved = torch.load("last.pt", weights_only=True)
    tensors = [*saved["model"].values()]
    tensors += [v for one in saved["optimizer"]["state"].values() for v in one.values()]
    assert all(tensor.device.type == "cpu" for tensor in tensors)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.save(model, "whole.pt")
    whole = torch.load("whole.pt", weights_only=False)
    assert next(whole.parameters()).device.type == "cpu"
    bias = model.head.bias.detach().numpy()
    same = torch.stack([model.head.bias.detach(), torch.zeros(3)]).sum()
    print(sorted(states), repr(model.head.bias).count("device"))
    averages = [value.norm() for value in shadow.values()]
    tell(model, *losses, totals, norm, right, bias.sum(), same, *averages)


class Sentences(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell = nn.Embedding(11, 6), nn.LSTM(6, 6, batch_first=True)
        self.head = nn.Linear(6, 11)
        self.places = torch.linspace(0, 1, 5)[None, :, None]  # a mere attribute

    def forward(self, words, state=None):
        if state is None:
            zeros = torch.zeros(1, words.shape[0], 6)
            state = (zeros, zeros)
        hidden, state = self.cell(self.embed(words) + self.places, state)
        return self.head(hidden), state


def sentences():
    """A recurrent model whose state goes from batch to batch; weights are tied by hand."""
    model, words = Sentences(), torch.randint(0, 11, (12, 4, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state, losses = None, []
    for batch in words:
        output, state = model(batch, state)
        state = tuple(part.detach() for part in state)
        loss = functional.cross_entropy(output.flatten(0, 1), batch.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    near = functional.linear(torch.ones(1, 6), model.embed.weight)
    tell(model, *losses, near.sum(), state[0].sum())


def rivals():
    """Two models and two optimizers in one step."""
    maker = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    judge = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
    first = torch.optim.Adam(judge.parameters(), lr=0.01)
    second = torch.optim.Adam(maker.parameters(), lr=0.01)
    criterion, seen = nn.BCELoss(), []
    for _ in range(8):
        real, label = torch.randn(8, 2), torch.full((8, 1), 1.0)
        judge.zero_grad()
        truth = criterion(judge(real), label)
        truth.backward()
        made = maker(torch.randn(8, 4))
        lie = criterion(judge(made.detach()), label.fill_(0.0))
        lie.backward()
        first.step()
        maker.zero_grad()
        fooled = criterion(judge(made), label.fill_(1.0))
        fooled.backward()
        second.step()
        seen += [truth.item(), lie.item(), fooled.item()]
    tell(maker, *seen)


def moved():
    """A script that copies its model, moves it to the CPU now and then, and goes on."""
    model, batches = Pictures(), loader()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen, best = [], None
    for epoch in range(3):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        best = copy.deepcopy(model)
        if epoch == 1:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "at.pt")
    again, resumed = torch.load("at.pt"), Pictures()
    resumed.load_state_dict(again["model"])
    optimizer = torch.optim.Adam(resumed.parameters(), lr=0.01)
    optimizer.load_state_dict(again["optimizer"])  # before the first call
    for x, y in batches:
        loss = functional.cross_entropy(resumed(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    weights = [p.norm() for p in best.cpu().parameters()]
    tell(model, *seen, *weights)


class Peeking(nn.Module):
    """From the fifth call on it reads its activations in a way that no device can."""

    def __init__(self):
        super().__init__()
        self.first, self.head, self.count = nn.Linear(4, 8), nn.Linear(8, 2), 0

    def forward(self, x):
        hidden = self.first(x).relu()
        self.count += 1
        if self.count > 4:
            self.peak = hidden.detach().numpy().max()
        return self.head(hidden)


def refused():
    """What cannot be carried goes on where it was."""
    trained(Peeking())


def shared():
    """Other processes hold the same memory: they would not see weights that move."""
    model = nn.Linear(4, 1)
    model.share_memory()
    trained(model)


def elsewhere():
    """A script for a device that is on no machine of these tests."""
    trained(nn.Linear(4, 1, device="maia"), device="maia")


def heavy():
    """2 MiB of weights, which a step with their gradients and their states multiplies."""
    model = nn.Sequential(
        nn.Linear(512, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512),
        nn.Dropout(), nn.Linear(512, 4),
    )  # fmt: skip
    trained(model, 512)
    print(model[1].num_batches_tracked.item(), round(model[1].running_mean.sum().item(), 4))
    print(next(model.parameters()).device.type)


def trained(model, width=4, device="cpu"):
    seen = []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(10):
        loss = model(torch.randn(8, width).to(device)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    tell(model, *seen)


if __name__ == "__main__":
    {name: act for name, act in globals().items() if callable(act)}[sys.argv[1]]()
