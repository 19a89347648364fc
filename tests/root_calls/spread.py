"""Models trained in one process, then again with root calls shared; it prints what came of both.

`spread.py RANKS` prints a JSON object: for each scene the distance of the weights, whether the
generator and the printed numbers agree, why a model stayed in one process, and what was left.
"""

import copy
import json
import logging
import os
import random
import subprocess
import sys
from collections import deque
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hasten.root_calls.ranks import examine
from hasten.root_calls.ranks.roots import Ranks

TEMPERATURE = 1.0
PADDING = 9.0


class Training:
    """As much of what levers are offered as `Ranks` needs."""

    def __init__(self):
        self.around, self.excused, self.trial = None, "", False

    def on_call(self, around, *, innermost):
        self.around = around
        return lambda: setattr(self, "around", None)

    def on_function(self, owner, name, answer):
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: answer(original, *args, **kwargs))
        return lambda: setattr(owner, name, original)

    def compiled(self, spent_s):
        pass

    def excuse(self, error):
        self.excused = str(error)

    def call(self, module, *args, **kwargs):
        if self.around is None:
            return module(*args, **kwargs)
        return self.around(module, lambda args, kwargs: module(*args, **kwargs), args, kwargs)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embed.weight

    def forward(self, tokens, targets=None):
        logits = self.head(self.drop(self.layer(self.embed(tokens))))
        if targets is None:
            return logits
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 4), nn.Linear(2, 6)

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        return {"seen": self.decode(z), "mean": mean, "log_var": log_var}


class Sequence(nn.Module):
    def __init__(self, batch_first=True):
        super().__init__()
        self.first = batch_first
        self.rnn, self.head = nn.LSTM(6, 5, batch_first=batch_first), nn.Linear(5, 3)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.head(out[:, -1] if self.first else out[-1])


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare, self.frozen = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 6)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.used(self.frozen(x))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 3), 1.0

    def forward(self, x):
        return self.layer(x) * self.scale / TEMPERATURE


class OneLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)


class Centred(OneLayer):
    def forward(self, x):
        return self.layer(x - x.mean(0))


class Exacting(OneLayer):
    def forward(self, x):
        assert len(x) == 7
        return self.layer(x)


class Remembering(OneLayer):
    def __init__(self):
        super().__init__()
        self.memory = deque(maxlen=2)

    def forward(self, x):
        self.memory.append(len(x))
        return self.layer(x)


class OwnChance(OneLayer):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        return self.layer(x) + torch.randn(3, generator=self.generator)


class Choosing(OneLayer):
    def forward(self, x):
        return torch.distributions.Categorical(logits=self.layer(x)), self.layer(x).sum(1)


class Deciding(OneLayer):
    def forward(self, x):
        return self.layer(x).argmax(1).tolist()


class Constrained(OneLayer):
    def forward(self, x):
        self.layer.weight.data = torch.renorm(self.layer.weight.data, 2, 0, 0.5)
        return self.layer(x)


class Centring(OneLayer):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(6)

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.layer(x - self.mean)


class Looking(OneLayer):
    def __init__(self):
        super().__init__()
        self.free = torch.ones(3, requires_grad=True)

    def forward(self, x):
        return self.layer(x) * self.free


class Taught(OneLayer):
    def __init__(self):
        super().__init__()
        self.teacher = [nn.Linear(6, 3)]

    def forward(self, x):
        return self.layer(x) + self.teacher[0](x).detach()


class Settings:
    scale = 1.0


class Annealed(OneLayer):
    """Two losses, of which one may be multiplied by 0 at first, and a setting in a class."""

    def __init__(self):
        super().__init__()
        self.beta = 0.0

    def forward(self, x, weight):
        out = self.layer(x) * Settings.scale
        return out.square().sum(), self.beta * out.exp().sum(), weight * out.cos().sum()


class Experts(nn.Module):
    """Some weights get gradients from some samples alone."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))

    def forward(self, x, task):
        out = torch.zeros(len(x), 3)
        for number, head in enumerate(self.heads):
            if (chosen := task == number).any():
                out[chosen] = head(x[chosen])
        return out


class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 3, max_norm=0.5)

    def forward(self, x):
        return self.embed(x.abs().long().clamp(max=8)).sum(1)


class Noisy(OneLayer):
    """Draws in every way that is cut, and one number that is the same for all samples."""

    def forward(self, x):
        noise = torch.rand(len(x), 6) + torch.randn(size=(len(x), 6)) + torch.rand_like(input=x)
        x = functional.dropout(x, p=0.3, training=self.training) + noise * torch.rand(1)
        wide = functional.dropout1d(x[:, :, None], 0.5, self.training)[:, :, 0]
        return self.layer(functional.dropout(wide, 0.1, self.training, inplace=True))


class Counting(OneLayer):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        return self.layer(x)


class Chance(OneLayer):
    def forward(self, x):
        return self.layer(x) * random.random()


class Averaged(nn.Module):
    """Its loss leaves out some samples: a mean of means is another one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x, y):
        return functional.cross_entropy(self.layer(x), y, ignore_index=0)


class Masked(nn.Module):
    """Its loss is the mean over the samples that a mask leaves in."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x, y, mask):
        losses = functional.cross_entropy(self.layer(x), y, reduction="none")
        return (losses * mask).sum() / (mask[None] @ mask[:, None]).squeeze()


class MeanOfFew(nn.Module):
    """Its loss is the mean over the samples with a feature that is not the padding."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x, y):
        losses = functional.cross_entropy(self.layer(x), y, reduction="none")
        mask = (x[:, 0] != PADDING).to(losses.dtype)
        return (losses * mask).sum() / mask.sum()


class Bent(OneLayer):
    def forward(self, x):
        return self.layer(x).square().mean().clamp(max=1e3)


class Warming(OneLayer):
    """Its loss counts the calls with gradients."""

    seen = 0

    def forward(self, x):
        if torch.is_grad_enabled():
            self.seen += 1
        return self.layer(x).square().mean() / (1 + self.seen)


class Meter:
    def __init__(self):
        self.count = 0

    def update(self, count):
        self.count += count


class Measuring(OneLayer):
    def __init__(self):
        super().__init__()
        self.meters = {"seen": Meter()}

    def forward(self, x):
        self.meters["seen"].update(len(x))
        return self.layer(x)


class Logged(OneLayer):
    def forward(self, x):
        logging.getLogger(__name__).info("batch of %d", len(x))
        return self.layer(x)


class Speaking(OneLayer):
    def forward(self, x):
        print("called with", len(x))
        return self.layer(x)


class Centered(OneLayer):
    """Counts many steps, and keeps a mean of its own, which a share has of its rows alone."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(2e5))
        self.register_buffer("center", torch.zeros(3))

    def forward(self, x):
        out = self.layer(x)
        with torch.no_grad():
            self.steps += 1
            self.center.mul_(0.9).add_(out.mean(0), alpha=0.1)
        return out.float()


class LastSeen(OneLayer):
    """Keeps the last sample, which the last share has as the whole batch does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(6))

    def forward(self, x):
        self.last.copy_(x[-1].detach())
        return self.layer(x)


class SometimesNormalized(OneLayer):
    """Normalizes where the first sample is number 0, as it is in the first share alone."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return self.layer(self.norm(x)) if x[0, 0] == 0 else self.layer(x)


class Spectral(OneLayer):
    """Has complex weights, as a Fourier neural operator has."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.cdouble))

    def forward(self, x):
        return self.layer(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=6))


class Settling(OneLayer):
    """Its first call sets what later ones read."""

    width = None

    def forward(self, x):
        if self.width is None:
            self.width = x.shape[1]
        return self.layer(x) / self.width


class Tallied(OneLayer):
    def __init__(self):
        super().__init__()
        self.tally = np.zeros(3)

    def forward(self, x):
        out = self.layer(x)
        self.tally += np.bincount(out.detach().argmax(1).numpy(), minlength=3)
        return out


class Summed(OneLayer):
    def __init__(self):
        super().__init__()
        self.sums = {"rows": torch.zeros(())}

    def forward(self, x):
        self.sums["rows"] += len(x)
        return self.layer(x)


class Moded(OneLayer):
    """Has a mode of its own beside that of its parts."""

    def __init__(self):
        super().__init__()
        self.mode = SimpleNamespace(training=True)

    def forward(self, x):
        return self.layer(x) if self.mode.training else 2 * self.layer(x)


class Domains(OneLayer):
    """Normalizes the samples of each domain by themselves."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _ in range(3))

    def forward(self, x, domains):
        out = torch.zeros_like(x)
        for number, norm in enumerate(self.norms):
            if (chosen := domains == number).any():
                out[chosen] = norm(x[chosen])
        return self.layer(out)


class Described(OneLayer):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0]))
        print(end="")

    def describe(self):
        print("weights:", sum(weight.numel() for weight in self.parameters()))

    def save(self, path):
        torch.save(self.state_dict(), path)

    def forward(self, x):
        return self.layer(x) + self.mask.exp()


def images(*more):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2), *more,
        nn.Flatten(), nn.Linear(4 * 36, 3),
    )  # fmt: skip


def rows(count=7, width=6):
    return torch.randn(count, width), torch.randint(0, 3, (count,))


def pictures(count=7):
    return torch.randn(count, 1, 8, 8), torch.randint(0, 3, (count,))


def descend(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def plain_step(call, net, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = functional.cross_entropy(call(net, x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    return loss.item()


def train(net, make, call, step=plain_step, *, count=6, between=lambda net, number: None):
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2)
    told = []
    for number in range(count):
        between(net, number)
        told.append(step(call, net, optimizer, make()))
    with torch.no_grad():
        told.append(float(call(net.eval(), make()[0]).sum()))
    return told


SCENES = {}


def scene(function):
    SCENES[function.__name__] = function
    return function


def ordinary_scene(name, make, draw):
    """Add one of a model that is trained like any other."""

    def play(call):
        net = make()
        return net, train(net, draw, call)

    SCENES[name] = play


ordinary_scene("normalized", images, pictures)


@scene
def centred(call):
    """The mean of what is normalized already is nothing but rounding."""
    layers = (nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6))
    net = nn.Sequential(*(copy.deepcopy(one) for _ in range(4) for one in layers), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    return net, [plain_step(call, net, optimizer, rows(16)) for _ in range(6)]


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        mask[2] = -torch.inf  # a row of which nothing is left
        x = self.layer(x.unsqueeze(1).expand(-1, 5, -1), src_mask=mask)
        part = x.view(len(x), 5, 2, 3).transpose(1, 2)
        attend = functional.scaled_dot_product_attention
        x = attend(part, part, part, dropout_p=0.1 * self.training, is_causal=True)
        return x.transpose(1, 2).reshape(len(x), -1)


ordinary_scene("attention_with_dropout", Attending, rows)


ordinary_scene("keeping_a_mean", Centered, rows)


ordinary_scene("keeping_the_last", LastSeen, rows)


def numbered_rows():
    x, y = rows()
    x[:, 0] = torch.arange(7)
    return x, y


ordinary_scene("sometimes_normalized", SometimesNormalized, numbered_rows)


ordinary_scene("described", Described, rows)


class Packed(nn.Module):
    """Sequences of unlike lengths; the batch of 7 divides the number of features."""

    def __init__(self):
        super().__init__()
        self.wide, self.rnn = nn.Linear(1, 14), nn.LSTM(14, 21, batch_first=True)
        self.head = nn.Linear(21, 3)

    def forward(self, x):
        lengths = (x[:, 1:] > 0).sum(1) + 1
        sequences = nn.utils.rnn.pack_padded_sequence(
            self.wide(x[..., None]), lengths.tolist(), batch_first=True, enforce_sorted=False
        )
        _, (last, _) = self.rnn(sequences)
        return self.head(last[-1])


ordinary_scene("packed_sequences", Packed, rows)


class Listing(Described):
    def parameters(self):
        return list(super().parameters())


ordinary_scene("parameters_in_a_list", Listing, rows)


ordinary_scene("channels_last", lambda: images().to(memory_format=torch.channels_last), pictures)


@scene
def attention(call):
    net = Attention()

    def step(call, net, optimizer, batch):
        logits = call(net, batch[0])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten())
        return descend(optimizer, loss)

    return net, train(net, lambda: (torch.randint(0, 11, (5, 4)),) * 2, call, step)


@scene
def loss_in_the_model(call):
    net = Attention()

    def step(call, net, optimizer, batch):
        _, loss = call(net, *batch)
        return descend(optimizer, loss)

    return net, train(net, lambda: (torch.randint(0, 11, (5, 4)),) * 2, call, step)


@scene
def summed_loss(call):
    net = Autoencoder()
    optimizer, told = torch.optim.SGD(net.parameters(), 1e-2), []
    for _ in range(5):
        x, _ = rows()
        out = call(net, x)
        loss = (out["seen"] - x).square().sum() + out["mean"].square().sum()
        loss = loss + (out["log_var"].exp() - out["log_var"]).sum()
        told.append(descend(optimizer, loss))
    return net, told


@scene
def recurrent(call):
    net = Sequence()
    make = lambda: (torch.randn(5, 4, 6), torch.randint(0, 3, (5,)))  # noqa: E731
    return net, train(net, make, call)


@scene
def recurrent_with_dropout(call):
    net = Sequence()
    net.rnn = nn.LSTM(6, 5, 2, dropout=0.5, batch_first=True)
    make = lambda: (torch.randn(5, 4, 6), torch.randint(0, 3, (5,)))  # noqa: E731
    return net, train(net, make, call)


@scene
def contrastive(call):
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))

    def step(call, net, optimizer, batch):
        # Two calls before one backward pass, each sample against all others.
        one, other = (functional.normalize(call(net, x), dim=1) for x in batch)
        loss = functional.cross_entropy(one @ other.T / 0.1, torch.arange(len(one)))
        loss = loss + 1e-3 * sum(p.square().sum() for p in net.parameters())
        return descend(optimizer, loss)

    return net, train(net, lambda: (rows()[0], rows()[0]), call, step)


@scene
def rivals(call):
    maker, judge = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
    both = [torch.optim.Adam(one.parameters(), 1e-2) for one in (maker, judge)]
    told = []
    for _ in range(5):
        real, fake = rows()[0], call(maker, torch.randn(7, 3))
        loss = call(judge, fake.detach()).exp().mean() - call(judge, real).mean()
        both[1].zero_grad()
        loss.backward()
        both[1].step()
        both[0].zero_grad()
        (-call(judge, fake).mean()).backward()
        both[0].step()
        told.append(loss.item())
    return nn.ModuleList([maker, judge]), told


@scene
def unused_and_frozen(call):
    net = Branches()

    def thaw(net, number):
        if number == 3:
            net.frozen.requires_grad_(True)

    told = train(net, rows, call, between=thaw)
    return net, [*told, net.spare.weight.grad is None, net.frozen.weight.grad is None]


# Not to be found in this script's code, which would keep models with batch normalization apart.
exec(
    "def norm_of_gradients(out, net):\n"
    "    found = torch.autograd.grad(out.sum(), list(net.parameters()))\n"
    "    return sum(one.norm().item() for one in found)"
)


@scene
def twice_through_one_graph(call):
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

    def step(call, net, optimizer, batch):
        out = call(net, batch[0])
        optimizer.zero_grad()
        out.square().mean().backward(retain_graph=True)
        norm = globals()["norm_of_gradients"](out, net)
        optimizer.step()
        return norm

    return net, train(net, rows, call, step)


@scene
def accumulated(call):
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

    def step(call, net, optimizer, batch):
        optimizer.zero_grad()
        for _ in range(3):
            loss = functional.cross_entropy(call(net, batch[0]), batch[1])
            loss.backward()
        optimizer.step()
        return loss.item()

    return net, train(net, rows, call, step)


@scene
def in_a_closure(call):
    net = nn.Linear(6, 3)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
    x, y = rows()

    def closure():
        optimizer.zero_grad()
        loss = functional.cross_entropy(call(net, x), y)
        loss.backward()
        return loss

    return net, [optimizer.step(closure).item() for _ in range(3)]


@scene
def other_sizes(call):
    net, sizes = images(), iter((7, 4, 1, 9, 7, 2, 7))
    return net, train(net, lambda: pictures(next(sizes)), call, count=6)


@scene
def changed_between_calls(call):
    global TEMPERATURE
    net = Scaled()

    def change(net, number):
        global TEMPERATURE
        if number == 2:
            net.scale = 0.5
        if number == 4:
            TEMPERATURE = 2.0
        if number == 5:
            net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()})

    told = train(net, rows, call, between=change)
    TEMPERATURE = 1.0
    return net, told


@scene
def a_part_in_evaluation(call):
    net = images(nn.BatchNorm2d(4))

    def freeze(net, number):
        net.train()
        if number >= 3:
            net[1].eval()

    return net, train(net, pictures, call, between=freeze)


@scene
def under_autocast(call):
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).float()

    def step(call, net, optimizer, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = call(net, batch[0].float())
        loss = functional.cross_entropy(out.float(), batch[1])
        return descend(optimizer, loss)

    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return net, [step(call, net, optimizer, rows()) for _ in range(3)]


@scene
def drawn_in_every_way(call):
    net, sizes = Noisy(), iter((7, 7, 2, 7, 3, 7, 4))
    return net, train(net, lambda: rows(next(sizes)), call)


@scene
def rows_of_several_samples(call):
    net = Attention()

    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, tokens):
            return self.net(tokens).flatten(0, 1)

    flat = Flat()

    def step(call, flat, optimizer, batch):
        loss = functional.cross_entropy(call(flat, batch[0]), batch[1].flatten())
        return descend(optimizer, loss)

    return net, train(flat, lambda: (torch.randint(0, 11, (5, 4)),) * 2, call, step)


@scene
def growing_batches(call):
    net, sizes = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)), [4]

    def step(call, net, optimizer, batch):
        # The first graph still waits for its backward pass when the second batch does not fit.
        first = call(net, batch[0])
        sizes[0] *= 4
        loss = first.square().mean() + call(net, torch.randn(sizes[0], 6)).square().mean()
        return descend(optimizer, loss)

    return net, train(net, lambda: rows(sizes[0]), call, step)


@scene
def hooked_in_between(call):
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

    def step(call, net, optimizer, batch):
        out = call(net, batch[0])
        handle = net[0].register_forward_hook(lambda module, args, out: out * 2)
        loss = out.square().mean() + call(net, batch[0]).mean()
        handle.remove()
        return descend(optimizer, loss)

    return net, train(net, rows, call, step)


@scene
def annealed(call):
    net = Annealed()
    optimizer, told = torch.optim.SGD(net.parameters(), 1e-3), []
    for number in range(8):
        net.beta = 0.0 if number < 2 else 1.0
        Settings.scale = 1.0 if number < 6 else 0.5
        loss = sum(call(net, rows()[0], 0.0 if number < 4 else 0.5))
        told.append(descend(optimizer, loss))
    Settings.scale = 1.0
    return net, told


@scene
def experts(call):
    net, told = Experts(), []
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    for number in range(4):
        optimizer.zero_grad(set_to_none=number < 2)
        for task in ([0, 0, 0, 1, 1, 1, 2], [0, 0, 1, 2, 2, 2, 2]):
            loss = call(net, rows()[0], torch.tensor(task)).square().mean()
            loss.backward()
            told.append(loss.item())
        optimizer.step()
    return net, told


ordinary_scene("complex_weights", Spectral, rows)


ordinary_scene("settled_by_its_first_call", Settling, rows)


@scene
def a_mode_of_its_own(call):
    def change(net, number):
        net.mode.training = number != 3

    net = Moded()
    return net, train(net, rows, call, between=change)


@scene
def a_variable_around(call):
    factor = 1.0

    class Scaling(OneLayer):
        def forward(self, x):
            return factor * self.layer(x)

    def change(net, number):
        nonlocal factor
        factor = 1.0 if number < 3 else 3.0

    net = Scaling()
    return net, train(net, rows, call, between=change)


def domain_scene(name, later):
    """Add one in which both shares have the same domains at first, and not later."""

    def play(call):
        net, told = Domains(), []
        optimizer = torch.optim.SGD(net.parameters(), 1e-2)
        for domains in ([0, 1, 2, 0, 1, 2, 2], *[later] * 6):
            loss = call(net, rows()[0], torch.tensor(domains)).square().mean()
            told.append(descend(optimizer, loss))
        return net, told

    SCENES[name] = play


domain_scene("other_domains", [0, 0, 1, 1, 2, 2, 2])
domain_scene("more_domains", [0, 0, 0, 0, 0, 1, 1])


@scene
def averages_in_between(call):
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

    def step(call, net, optimizer, batch):
        out = call(net, batch[0])
        own = [weight.detach().clone() for weight in net.parameters()]
        with torch.no_grad():
            for weight in net.parameters():
                weight.data.mul_(0.5)
            goal = call(net, batch[0])
            for weight, value in zip(net.parameters(), own, strict=True):
                weight.data.copy_(value)
        loss = (out - goal).square().mean()
        return descend(optimizer, loss)

    return net, train(net, rows, call, step)


@scene
def frozen_in_between(call):
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

    def step(call, net, optimizer, batch):
        out = call(net, batch[0])
        net[0].requires_grad_(False)
        optimizer.zero_grad()
        out.square().mean().backward()
        net[0].requires_grad_(True)
        optimizer.step()
        return float(out.sum())

    return net, train(net, rows, call, step)


def refused(make, loss_of=lambda out: out.square().mean()):
    def play(call):
        net, told = make(), []
        optimizer = torch.optim.SGD(net.parameters(), 1e-2)
        for _ in range(6):
            out = call(net, rows()[0])
            if not isinstance(out, list):
                loss = loss_of(out)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                out = [loss.item()]
            told += out
        return net, told

    return play


SCENES |= {
    "choosing": refused(Choosing, lambda out: out[0].entropy().sum() + out[1].sum()),
    "deciding": refused(Deciding),
    "constrained": refused(Constrained),
    "centring": refused(Centring),
    "looking": refused(Looking),
    "taught": refused(Taught),
    "embedding_with_a_norm": refused(Rounded),
}


ordinary_scene("samples_that_depend_on_one_another", Centred, rows)


@scene
def time_before_batch(call):
    net = Sequence(batch_first=False)
    return net, train(net, lambda: (torch.randn(4, 5, 6), torch.randint(0, 3, (5,))), call)


@scene
def a_mean_of_some(call):
    net = Averaged()
    optimizer, told = torch.optim.SGD(net.parameters(), 1e-2), []
    for _ in range(6):
        x, _ = rows()
        loss = call(net, x, torch.tensor([0, 0, 0, 1, 2, 1, 0]))
        told.append(descend(optimizer, loss))
    return net, told


@scene
def a_mean_of_some_in_the_end(call):
    """The first batches are whole; the last ones leave most of one share out."""
    net = Masked()
    optimizer, told = torch.optim.SGD(net.parameters(), 1e-2), []
    for mask in (torch.ones(7), torch.tensor([0.0, 0, 1, 1, 1, 1, 1])):
        for _ in range(2):
            told.append(descend(optimizer, call(net, *rows(), mask)))
    return net, told


@scene
def padded_in_the_end(call):
    """The first batches have no padding; the last ones have it in one share."""
    net = MeanOfFew()
    optimizer, told = torch.optim.SGD(net.parameters(), 1e-2), []
    for padded_count in (0, 0, 0, 2, 2, 2):
        x, y = rows()
        x[:padded_count, 0] = PADDING
        told.append(descend(optimizer, call(net, x, y)))
    return net, told


@scene
def bent_in_evaluation(call):
    """The last batches lie beyond the bound."""
    net = Bent()
    with torch.no_grad():
        return net, [float(call(net, rows()[0] * size)) for size in (1, 1, 1, 1e3, 1e3, 1e3)]


@scene
def bent_under_inference_mode(call):
    net, batches = Bent(), [rows()[0] * size for size in (1, 1, 1, 1e3, 1e3, 1e3)]
    with torch.inference_mode():
        return net, [float(call(net, batch)) for batch in batches]


@scene
def evaluated_under_inference_mode(call):
    net, batches = images().eval(), [pictures()[0] for _ in range(4)]
    with torch.inference_mode():
        return net, [float(call(net, batch).sum()) for batch in batches]


@scene
def warming(call):
    """It evaluates before it trains."""
    net = Warming()
    with torch.no_grad():
        told = [float(call(net, rows()[0])) for _ in range(3)]
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    told += [descend(optimizer, call(net, rows()[0])) for _ in range(3)]
    return net, [*told, net.seen]


@scene
def measuring(call):
    net = Measuring()
    return net, [*train(net, rows, call), net.meters["seen"].count]


ordinary_scene("logged", Logged, rows)


@scene
def counting_calls(call):
    net = Counting()
    return net, [*train(net, rows, call), net.seen]


ordinary_scene("exacting", Exacting, rows)


@scene
def tallied(call):
    net = Tallied()
    return net, [*train(net, rows, call), *net.tally]


@scene
def summed(call):
    net = Summed()
    return net, [*train(net, rows, call), net.sums["rows"]]


@scene
def remembering(call):
    net = Remembering()
    return net, [*train(net, rows, call), *net.memory]


ordinary_scene("own_generator", OwnChance, rows)


@scene
def another_generator(call):
    net = Chance()
    random.seed(3)
    return net, train(net, rows, call)


@scene
def hooked(call):
    net = nn.Linear(6, 3)
    seen = []
    net.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    return net, [*train(net, rows, call), *seen]


ordinary_scene("speaking", Speaking, rows)


def weights(net):
    state = net.state_dict().values()
    real = (torch.view_as_real(value) if value.is_complex() else value for value in state)
    values = (value.double().flatten() for value in real)
    return torch.cat(list(values)).clamp(min=-9e9)


def played(make, call):
    torch.manual_seed(1)
    net, told = make(call)
    return weights(net), told, torch.get_rng_state()


def compared(alone, shared):
    """Return how far two trainings, as `played` gives them, are from one another."""
    (expected, told, state), (seen, seen_told, seen_state) = alone, shared
    pairs = list(zip(told, seen_told, strict=True))
    return {
        "distance": float((seen - expected).norm() / expected.norm()),
        "told": max(abs(float(a) - float(b)) for a, b in pairs),
        "generator": torch.equal(state, seen_state),
    }


def helpers():
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return file.read().split()


def main(ranks):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    examine._SPARE_BYTES = 0  # so that batches outgrow the room of messages
    found = {}
    for name, make in SCENES.items():
        alone = played(make, lambda module, *args: module(*args))
        training = Training()
        detach = Ranks(training, ranks, lambda: None).attach()
        most = [0]

        def call(module, *args, training=training, most=most):
            out = training.call(module, *args)
            most[0] = max(most[0], len(helpers()))
            return out

        seen = played(make, call)
        detach()
        found[name] = {
            **compared(alone, seen),
            "excused": training.excused,
            "most": most[0],
            "left": len(helpers()),
        }
    found["faults"] = faults(ranks)
    print(json.dumps(found))


def faults(ranks):
    """What a script meets whose helper dies, whose model fails, and which is interrupted."""
    found = {}

    def fresh():
        training = Training()
        net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        return net, training, Ranks(training, ranks, lambda: None).attach()

    net, training, detach = fresh()
    x, _ = rows()
    training.call(net, x)
    os.kill(int(helpers()[0]), 9)
    found["killed before a call"] = float((training.call(net, x) - net(x)).detach().abs().max())
    for _ in range(5):
        training.call(net, x)
    found["told"] = training.excused
    detach()

    training, net, twin = Training(), images(), images()
    detach = Ranks(training, ranks, lambda: None).attach()
    picture, _ = pictures()
    training.call(net, picture)
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in net.state_dict().items()}
    os.kill(int(helpers()[0]), 9)
    ours = training.call(net, picture)
    detach()
    torch.set_rng_state(state)
    twin.load_state_dict(before)
    theirs = twin(picture)
    pairs = zip((ours, *net.buffers()), (theirs, *twin.buffers()), strict=True)
    found["killed in a call"] = max(float((a - b).detach().abs().max()) for a, b in pairs)

    net, training, detach = fresh()
    makes = {True: lambda args, kwargs: net(*args, **kwargs)}
    makes[False] = partial(
        lambda module, call, args, kwargs: 2 * call(args, kwargs), net, makes[True]
    )
    found["under levers that change"] = max(
        float(
            (training.around(net, makes[is_plain], (x,), {}) - makes[is_plain]((x,), {}))
            .abs()
            .max()
        )
        for is_plain in (True, True, False, False, True, False)
    )
    detach()

    net, training, detach = fresh()
    training.call(net, x)
    out = training.call(net, x)
    os.kill(int(helpers()[0]), 9)
    try:
        out.sum().backward()
        found["killed before backward"] = "nothing was raised"
    except RuntimeError as error:
        found["killed before backward"] = str(error)
    detach()

    net, training, detach = fresh()
    training.call(net, x)
    try:
        training.call(net, torch.randn(7, 9))
        found["wrong shape"] = "nothing was raised"
    except RuntimeError as error:
        found["wrong shape"] = str(error).partition("\n")[0]
    detach()

    net, training, detach = fresh()
    training.call(net, x)
    interrupts = [1]
    script = os.getpid()
    plain = nn.Tanh.forward

    def forward(self, value):
        if os.getpid() == script and interrupts:
            interrupts.clear()
            raise KeyboardInterrupt
        return plain(self, value)

    nn.Tanh.forward = forward
    try:
        training.call(net, x)
    except KeyboardInterrupt:
        found["interrupted"] = float((training.call(net, x) - net(x)).detach().abs().max())
    nn.Tanh.forward = plain
    detach()
    del out, ours  # helpers end with the last graph that goes through them
    found["left"] = len(helpers())

    reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    net, training, detach = fresh()
    training.call(net, x)
    reader.stdin.close()
    found["reader"] = reader.wait(timeout=20)
    detach()
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]))
