"""A training of one of three models, by somebody who knows nothing of hasten.

`networked.py MODEL STEPS by-hand` is what one writes who has several processes:
`DistributedDataParallel`, each with its part of the batch. Without the last word it is for one.
"""

import sys
import time

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

MODEL, STEPS = sys.argv[1], int(sys.argv[2])
BY_HAND = sys.argv[3:] == ["by-hand"]
WARM = 12  # whether a batch can be shared is looked at in the first step, and in the eleventh
WIDTH, LENGTH, SAMPLES = 256, 64, 16
torch.manual_seed(0)


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, width = x.shape
        parts = self.mix(self.before(x)).view(samples, length, 3, 4, width // 4)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(samples, length, width))
        return x + self.feed(self.behind(x))


class Transformer(nn.Module):
    """A language model of words."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, WIDTH)
        self.place = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(4)])
        self.head = nn.Linear(WIDTH, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(words) + self.place)).flatten(0, 1)


def convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for number, (given, made) in enumerate(((3, 64), (64, 64), (64, 128), (128, 128), (128, 256))):
        layers += [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] * (number % 2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 64, 10))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    if MODEL == "convolutions":
        return torch.randn(SAMPLES, 3, 32, 32), torch.randint(0, 10, (SAMPLES, 1))
    words = torch.randint(0, WORDS[MODEL], (SAMPLES, LENGTH + 1))
    return words[:, :-1], words[:, 1:]


WORDS = {"letters": 65, "words": 8192}
net = convolutions() if MODEL == "convolutions" else Transformer(WORDS[MODEL])
rank, ranks = 0, 1
if BY_HAND:
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    net = DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
begun = [time.perf_counter()]
for step in range(STEPS):
    if step == WARM:
        begun.append(time.perf_counter())
    x, y = (part.chunk(ranks)[rank] for part in batch())
    optimizer.zero_grad()
    functional.cross_entropy(net(x), y.flatten()).backward()
    optimizer.step()
print(f"first {begun[1] - begun[0]}\nloop {(time.perf_counter() - begun[1]) / (STEPS - WARM)}")
print(f"bytes {sum(one.numel() * one.element_size() for one in net.parameters())}", flush=True)
if BY_HAND:
    distributed.destroy_process_group()
