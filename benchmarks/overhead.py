"""What `upshift run` costs beside a script whose author wrote the same settings into it.

    python benchmarks/overhead.py --rounds 20

Both are the same small training. One has the settings in its source and is run by plain python;
the other has none and is run by `upshift run --lever ...`. In each round both run once, in a random
order, and print the seconds of their steps after the first ones. Above 1, `run` is slower.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import machine_line, ratio, ratio_cell

HERE = Path(__file__).parent
LEVERS = ("channels_last=True", "fused_optimizer=True", "intra_op_threads=1")
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
data = TensorDataset(torch.randn(256, 3, 32, 32), torch.randint(10, (256,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
criterion = nn.CrossEntropyLoss()
step, began_s = 0, 0.0
while step < {steps}:
    for images, labels in loader:
        if step == {first}:
            began_s = time.perf_counter()
        if HAND:
            images = images.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        criterion(net(images), labels).backward()
        optimizer.step()
        step += 1
        if step == {steps}:
            break
print(time.perf_counter() - began_s)
"""
PAGE = """\
# What `upshift run` costs beside settings written by hand

{machine}

The same training of a small convolutional network, in fresh processes, {rounds} rounds in a random
order: {levers} pulled by `upshift run`, over the same three written into the script and run by
plain python. Seconds of steps {first} to {steps}, loading included.

| | ratio |
|---|---|
| `upshift run` over the script edited by hand | {ratio} |
| the edited script over itself | {control} |

Reproduce with `python benchmarks/overhead.py --rounds {rounds}`.
"""


def seconds(words: list[str]) -> float:
    """Return what the script says that its steps took."""
    done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    """Run the benchmark and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    first, coin = asked.steps // 6, random.Random(3)
    ratios, controls = [], []
    with tempfile.TemporaryDirectory() as folder:
        scripts = {}
        for hand in (True, False):
            scripts[hand] = Path(folder, f"hand_{hand}.py".lower())
            scripts[hand].write_text(SCRIPT.format(hand=hand, steps=asked.steps, first=first))
        pulled = [word for lever in LEVERS for word in ("--lever", lever)]
        todo = {
            "hand": [str(scripts[True])],
            "again": [str(scripts[True])],
            "run": ["-m", "upshift", "run", "--quiet", *pulled, str(scripts[False])],
        }
        for number in range(asked.rounds):
            walls = {name: seconds(todo[name]) for name in coin.sample(list(todo), len(todo))}
            ratios.append(math.log(walls["run"] / walls["hand"]))
            controls.append(math.log(walls["again"] / walls["hand"]))
            print(f"round {number + 1}: {math.exp(ratios[-1]):.3f}", flush=True)
    text = PAGE.format(
        machine=machine_line(), rounds=asked.rounds, first=first, steps=asked.steps,
        levers=", ".join(f"`{lever}`" for lever in LEVERS),
        ratio=ratio_cell(ratio(ratios), digits=3), control=ratio_cell(ratio(controls), digits=3),
    )  # fmt: skip
    (asked.out / "overhead.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
