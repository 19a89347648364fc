"""A training whose parts could run side by side: `branches.py MODEL WAY STEPS`.

The way `own` calls one part after the other, as scripts do. `threads` is the same training written
by hand for threads: independent parts run side by side, each with one thread of torch, forward and,
where they have gradients, backward. It knows nothing of hasten.
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

MODEL, WAY, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)
torch.get_num_threads()  # before any thread of its own sets a number
POOL = ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,))
MEMBERS_COUNT = 4
Call = Callable[[], Tensor]


class SideBySide(torch.autograd.Function):
    """Calls of modules side by side; so are their backward passes."""

    @staticmethod
    def forward(ctx: Any, parts: Sequence[nn.Module], *given: Tensor) -> tuple[Tensor, ...]:
        """Call each part with its own input; the weights follow the inputs, for their gradients."""

        def call(part: nn.Module, x: Tensor) -> Tensor:
            with torch.enable_grad():
                return part(x)

        inputs = given[: len(parts)]
        ctx.results = list(POOL.map(call, parts, inputs))
        ctx.weights = [list(part.parameters()) for part in parts]
        return tuple(result.detach() for result in ctx.results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Return the gradients of the weights; the inputs are data."""
        found = list(POOL.map(torch.autograd.grad, ctx.results, ctx.weights, gradients))
        return (None, *[None] * len(found), *[one for part in found for one in part])


def called(parts: Sequence[nn.Module], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Call each part with its input."""
    if WAY == "own":
        return [part(x) for part, x in zip(parts, inputs, strict=True)]
    weights = [weight for part in parts for weight in part.parameters()]
    return SideBySide.apply(parts, *inputs, *weights)


def without_gradients(calls: Sequence[Call]) -> list[Tensor]:
    """Make calls of which at most the last needs gradients."""
    if WAY == "own":
        with torch.no_grad():
            first = [call() for call in calls[:-1]]
        return [*first, calls[-1]()]

    def alone(call: Call) -> Tensor:
        with torch.no_grad():
            return call()

    waiting = [POOL.submit(alone, call) for call in calls[:-1]]
    last = POOL.submit(calls[-1]).result()
    return [*[one.result() for one in waiting], last]


def convolutions(width: int, out: int) -> nn.Module:
    """Return a small network for pictures of 32 x 32."""
    layers: list[nn.Module] = []
    for given, made in ((3, width), *[(width, width)] * 4):
        layers += [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(64 * width, out))


def words() -> nn.Module:
    """Return a transformer over 32 words of 128 features."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 3), nn.Flatten(), nn.Linear(32 * 128, 64))


class Towers:
    """Pictures and texts that belong together."""

    def __init__(self) -> None:
        self.towers = nn.ModuleList([convolutions(16, 64), words()])
        self.optimizer = torch.optim.SGD(self.towers.parameters(), 1e-3)

    def step(self) -> Tensor:
        pictures, texts = torch.randn(64, 3, 32, 32), torch.randn(64, 32, 128)
        seen = called(list(self.towers), [pictures, texts])
        one, other = (functional.normalize(part, dim=1) for part in seen)
        loss = functional.cross_entropy(one @ other.T / 0.1, torch.arange(64))
        return updated(self.optimizer, loss)


class Ensemble:
    """Members that see the same batch, and never one another."""

    def __init__(self) -> None:
        self.members = nn.ModuleList([
            nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                          nn.Linear(512, 10)) for _ in range(MEMBERS_COUNT)
        ])  # fmt: skip
        self.optimizer = torch.optim.SGD(self.members.parameters(), 1e-3)

    def step(self) -> Tensor:
        x, y = torch.randn(128, 256), torch.randint(10, (128,))
        seen = called(list(self.members), [x] * MEMBERS_COUNT)
        return updated(self.optimizer, sum(functional.cross_entropy(one, y) for one in seen))


class Distillation:
    """A student beside a teacher that does not learn."""

    def __init__(self) -> None:
        self.teacher, self.student = convolutions(24, 10).eval(), convolutions(16, 10)
        self.optimizer = torch.optim.SGD(self.student.parameters(), 1e-3)

    def step(self) -> Tensor:
        x = torch.randn(64, 3, 32, 32)
        said, seen = without_gradients([lambda: self.teacher(x), lambda: self.student(x)])
        loss = functional.kl_div(seen.log_softmax(1), said.softmax(1), reduction="batchmean")
        return updated(self.optimizer, loss)


class Adversarial:
    """A generator whose pictures are made while the judge looks at real ones."""

    def __init__(self) -> None:
        self.judge = convolutions(16, 1)
        self.generator = nn.Sequential(
            nn.Linear(64, 64 * 8 * 8), nn.Unflatten(1, (64, 8, 8)),
            nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        self.judging = torch.optim.SGD(self.judge.parameters(), 1e-3)
        self.making = torch.optim.SGD(self.generator.parameters(), 1e-3)

    def step(self) -> Tensor:
        real, drawn = torch.randn(64, 3, 32, 32), torch.randn(64, 64)
        is_real, is_made = torch.ones(64, 1), torch.zeros(64, 1)
        right = functional.binary_cross_entropy_with_logits
        made, seen = without_gradients([lambda: self.generator(drawn), lambda: self.judge(real)])
        updated(self.judging, right(seen, is_real) + right(self.judge(made), is_made))
        return updated(self.making, right(self.judge(self.generator(drawn)), is_real))


def updated(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """Update the weights; return the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


MODELS = {"towers": Towers, "ensemble": Ensemble, "distillation": Distillation,
          "adversarial": Adversarial}  # fmt: skip
training = MODELS[MODEL]()
for step in range(STEPS):
    loss = training.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.9g}", flush=True)
