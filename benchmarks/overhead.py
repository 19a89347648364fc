"""What `upshift run` costs beside a script whose author wrote the same settings into it.

    python benchmarks/overhead.py --launches 8

Both are the same small training. One has the settings in its source and is run by plain python;
the other has none and is run by `upshift run --lever ...`. Above 1, `run` is slower.

Runs of the same script differ by more than what is looked for, and a machine drifts within
seconds. So no two whole runs are set side by side: in each launch three processes live at once (by
hand, by hand again, by `run`), and take turns at blocks of whole epochs, in a random order, while
the others wait for a line on their standard input. A launch gives the median ratio of its rounds;
the figure is over launches. The second process by hand says what the method itself cannot tell
apart. Starting up is no part of the blocks and is told beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from figures import machine_line, ratio, ratio_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
LEVERS = ("channels_last=True", "fused_optimizer=True", "intra_op_threads=1")
ARMS = ("hand", "again", "run")
EPOCH_COUNT = 16
BLOCK_COUNT = 2 * EPOCH_COUNT
WARM_COUNT = 3
SCRIPT = """\
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HAND = {hand}
torch.manual_seed(3)
if HAND:
    torch.set_num_threads(1)
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
)
if HAND:
    net = net.to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(net.parameters(), **({{"fused": True}} if HAND else {{}}))
data = TensorDataset(torch.randn({epoch} * 16, 3, 32, 32), torch.randint(10, ({epoch} * 16,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
criterion = nn.CrossEntropyLoss()


def endless():
    while True:
        yield from loader


batches = endless()
while line := sys.stdin.readline():
    count = int(line)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(count):
        images, labels = next(batches)
        if HAND:
            images = images.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        criterion(net(images), labels).backward()
        optimizer.step()
    spent_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    last = net[3].weight.is_contiguous(memory_format=torch.channels_last)
    print(spent_s / count, cpu_s / count, torch.get_num_threads(), last, flush=True)
"""
PAGE = """\
# What `upshift run` costs beside settings written by hand

{machine}

The same training of a small convolutional network: {levers} pulled by `upshift run`, over the same
three written into the script and run by plain python. Blocks of {block} steps, loading included, in
turn, {rounds} rounds in each of {launches} launches; the median ratio of each launch, and their
interval.

| | ratio of the time of a step | of its CPU time |
|---|---|---|
| `upshift run` over the script edited by hand | {run} | {run_cpu} |
| the edited script over itself, in another process | {again} | {again_cpu} |

CPU time leaves out what other programs on the machine take, and waiting.

Until the first step has ended, `upshift run` takes {start:.2f} times as long as the script by hand,
imports included (medians of the launches; the processes were started one after the other).

Reproduce with `make bench-overhead ARGUMENTS="--launches {launches} --rounds {rounds}"`.
"""


class Spent(NamedTuple):
    """Seconds of one step, by the clock and by the processor."""

    wall_s: float
    cpu_s: float


class Arm:
    """One living script, which runs steps when it is asked to.

    Attributes:
        start_s: seconds from the start of the process to the end of its first step.
        state: threads and layout of the weights, as the script itself sees them.
    """

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self._errors = folder / "errors"
        self._began_s = time.perf_counter()
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True, cwd=folder,
            )  # fmt: skip
        self.state: tuple[str, ...] = ()
        self.step(1)
        self.start_s = time.perf_counter() - self._began_s

    def step(self, count: int) -> Spent:
        """Run `count` steps and return what one of them took."""
        assert self._process.stdin is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        with contextlib.suppress(BrokenPipeError):
            print(count, file=self._process.stdin, flush=True)
        words = self._process.stdout.readline().split()
        said = self._errors.read_text()
        if not words or said:  # a lever that was left out says so there
            raise SystemExit(said or "The script ended early.")
        self.state = tuple(words[2:])
        return Spent(float(words[0]), float(words[1]))

    def close(self) -> None:
        """End the script."""
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.close()
        self._process.wait(60)


def launch(
    folder: Path, rounds: int, coin: random.Random
) -> tuple[dict[str, list[Spent]], dict[str, float]]:
    """Start the three and let them take turns.

    Returns:
        What a step of each arm took in each round, and its seconds of starting up.
    """
    pulled = [word for lever in LEVERS for word in ("--lever", lever)]
    edited, plain = str(folder / "hand.py"), str(folder / "plain.py")
    words = {
        "hand": [edited],
        "again": [edited],
        "run": ["-m", "upshift", "run", "--quiet", *pulled, plain],
    }
    with contextlib.ExitStack() as stack:
        arms = {}
        for name in coin.sample(ARMS, len(ARMS)):
            place = folder / name
            place.mkdir(exist_ok=True)
            arms[name] = Arm(words[name], place)
            stack.callback(arms[name].close)
        for _ in range(WARM_COUNT):
            for arm in arms.values():
                arm.step(BLOCK_COUNT)
        if len({arm.state for arm in arms.values()}) > 1:
            raise SystemExit(f"Not the same settings: { {n: a.state for n, a in arms.items()} }.")
        seen: dict[str, list[Spent]] = {name: [] for name in ARMS}
        for _ in range(rounds):
            for name in coin.sample(ARMS, len(ARMS)):
                seen[name].append(arms[name].step(BLOCK_COUNT))
        return seen, {name: arm.start_s for name, arm in arms.items()}


def log_ratio(over: Sequence[Spent], under: Sequence[Spent], kind: str) -> float:
    """Return the median log ratio of the rounds."""
    return median(
        math.log(getattr(one, kind) / getattr(two, kind))
        for one, two in zip(over, under, strict=True)
    )


def main() -> None:
    """Run the benchmark and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    coin = random.Random(3)
    cells = {"run": "wall_s", "run_cpu": "cpu_s", "again": "wall_s", "again_cpu": "cpu_s"}
    logs: dict[str, list[float]] = {cell: [] for cell in cells}
    starts: dict[str, list[float]] = {name: [] for name in ARMS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for hand in (True, False):
            text = SCRIPT.format(hand=hand, epoch=EPOCH_COUNT)
            (folder / ("hand.py" if hand else "plain.py")).write_text(text)
        for number in range(asked.launches):
            seen, started = launch(folder, asked.rounds, coin)
            for cell, kind in cells.items():
                over = seen[cell.removesuffix("_cpu")]
                logs[cell].append(log_ratio(over, seen["hand"], kind))
            for arm, start_s in started.items():
                starts[arm].append(start_s)
            told = ", ".join(f"{cell} {math.exp(found[-1]):.3f}" for cell, found in logs.items())
            print(f"launch {number + 1}: {told}", flush=True)
    page = PAGE.format(
        machine=machine_line(), launches=asked.launches, rounds=asked.rounds, block=BLOCK_COUNT,
        levers=", ".join(f"`{lever}`" for lever in LEVERS),
        start=median(starts["run"]) / median(starts["hand"] + starts["again"]),
        **{cell: ratio_cell(ratio(found), digits=3) for cell, found in logs.items()},
    )  # fmt: skip
    (asked.out / "overhead.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
