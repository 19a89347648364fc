"""A training of one of six models: `ranked.py MODEL STEPS`. It knows nothing of hasten."""

import sys

import torch
from torch import nn
from torch.nn import functional

MODEL, STEPS = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(drop)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, width = x.shape
        parts = self.mix(self.before(x)).view(samples, length, 3, 4, width // 4)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(samples, length, width))
        return x + self.feed(self.behind(x))


class Transformer(nn.Module):
    """A language model of letters."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(65, 128), nn.Parameter(torch.zeros(64, 128))
        self.blocks = nn.Sequential(*[Block(128, drop) for _ in range(4)])
        self.head = nn.Linear(128, 65)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(letters) + self.place)).flatten(0, 1)


class Recurrent(nn.Module):
    """A classifier of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(64, 128, 2, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Autoencoder(nn.Module):
    """A variational autoencoder; it draws in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 40))
        self.decode = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log_var = self.encode(x).chunk(2, dim=1)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        return self.decode(drawn), mean, log_var


def convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for given, made in ((3, 16), *[(16, 16)] * 8):
        layers += [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(1024, 10))


def classified(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(net(x), y.flatten())


def rebuilt(net: nn.Module, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    seen, mean, log_var = net(x)
    lost = functional.binary_cross_entropy_with_logits(seen, x, reduction="sum")
    return lost - 0.5 * torch.sum(1 + log_var - mean.square() - log_var.exp())


def told_apart(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    one, other = (functional.normalize(net(half), dim=1) for half in (x, y))
    return functional.cross_entropy(one @ other.T / 0.1, torch.arange(len(one)))


def pictures() -> torch.Tensor:
    return torch.randn(64, 3, 32, 32)


MODELS = {
    "convolutions": (convolutions, classified, lambda: (pictures(), torch.randint(10, (64,)))),
    "transformer": (
        Transformer, classified, lambda: (torch.randint(65, (32, 64)), torch.randint(65, (32, 64)))
    ),
    "transformer_with_dropout": (
        lambda: Transformer(0.1), classified,
        lambda: (torch.randint(65, (32, 64)), torch.randint(65, (32, 64))),
    ),
    "recurrent": (
        Recurrent, classified, lambda: (torch.randn(64, 64, 64), torch.randint(10, (64,)))
    ),
    "autoencoder": (Autoencoder, rebuilt, lambda: (torch.rand(128, 784), torch.zeros(0))),
    "contrastive": (convolutions, told_apart, lambda: (pictures(), pictures())),
}  # fmt: skip
make, loss_of, draw = MODELS[MODEL]
net = make()
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for step in range(STEPS):
    loss = loss_of(net, *draw())
    optimizer.zero_grad()
    loss.backward()
    if MODEL == "recurrent":  # updates by hand
        with torch.no_grad():
            for weight in net.parameters():
                weight.sub_(weight.grad, alpha=1e-2)
    else:
        optimizer.step()
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
