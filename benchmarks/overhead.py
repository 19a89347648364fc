"""What `hasten run` costs beside a script whose author wrote the same settings into it.

    python benchmarks/overhead.py --launches 6

Two processes of one and the same script differ by up to 30 % for their whole life, in memory that
only chance lays out, so nothing as small as what is looked for can be seen between two. Therefore
both stand in one process: a script under `hasten run --set ...` trains in blocks. For some, all
that hasten put into the process acts. For the others it is taken out, seams and hooks of
optimizers, and the script itself converts its batches, as its author would have written; weights,
the fused optimizer and threads are the same. What hasten adds to a step is instructions, it waits
for nothing; so the CPU time of the process is compared, which other work on a shared machine
disturbs less than it does the clock. The blocks are short, since such a machine changes its pace
within seconds, and go in a random order; a launch gives the median ratio of its rounds, and the
figure is over launches. Blocks by hand over others by hand say what the method itself cannot tell
apart. Above 1, `run` costs more. The third line is what a profile adds, which looks from time to
time at the line that the loop stands on; timed blocks of a tuning are free of that.

What `run` adds is less than such a race can tell apart. So it is timed in place, too: every seam
and hook has a clock at its entry, at the start and at the end of what it stands for, and at its
exit, in the steps themselves, where the code is as cold as it is in a training. The batches come
converted there, as the author would have them. Reading the clocks counts as ours.

What it takes to start is told beside: from the start of the process to the end of its first step,
against plain python with the settings in the source.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from figures import machine_line, ratio, ratio_cell

HERE = Path(__file__).parent
LEVERS = ("channels_last=True", "fused_optimizer=True", "intra_op_threads=1")
ARMS = ("hand", "again", "run", "looked")
EPOCH_COUNT = 16
BLOCK_COUNT, SETTLE_COUNT = 4, 2
WARM_COUNT = 6
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


def block(count, hand):
    took = []
    while True:
        began_s = time.process_time()
        for images, labels in loader:
            if hand:
                images = images.to(memory_format=torch.channels_last)
            optimizer.zero_grad()
            criterion(net(images), labels).backward()
            optimizer.step()
            ended_s = time.process_time()
            took.append(ended_s - began_s)
            began_s = ended_s
            if len(took) == count:
                return took


block(1, HAND)
print("begun", flush=True)
"""
ALTERNATING = """\
import gc
import random

from hasten.instrument import Watch
from hasten.instrument.examine.stacks import Stacks

(watch,) = (found for found in gc.get_objects() if type(found) is Watch)
assert watch.live.roots.callers, "channels_last"
assert torch.get_num_threads() == 1, "threads"
block(2, False)
assert optimizer.param_groups[0]["fused"], "fused"
own_hooks, no_hooks = optimizer._optimizer_step_pre_hooks, {{}}
assert own_hooks, "the hook that minds its options"
coin = random.Random({seed})
for number in range({warm} + {rounds}):
    took = {{}}
    for name in coin.sample({arms}, {arm_count}):
        by_hand = name in ("hand", "again")
        optimizer._optimizer_step_pre_hooks = no_hooks if by_hand else own_hooks
        if by_hand:
            watch.detach()
        else:
            watch.install()
        block({settle}, by_hand)
        stacks = Stacks(watch) if name == "looked" else None
        took[name] = sum(block({block}, by_hand))
        if stacks is not None:
            stacks.end()
    if number >= {warm}:
        print(*(took[name] for name in {arms}))
print("in place", flush=True)
"""
IN_PLACE = """
class Meter:
    \"\"\"Time what a seam does before and after that which it stands for.\"\"\"

    own_s, since_s, is_in = 0.0, 0.0, False

    def outside(self, ours):
        def call(*args, **kwargs):
            if self.is_in:
                return ours(*args, **kwargs)
            self.is_in, self.since_s = True, time.perf_counter()
            try:
                return ours(*args, **kwargs)
            finally:
                self.own_s += time.perf_counter() - self.since_s
                self.is_in = False
        return call

    def inside(self, original):
        depth = [0]

        def call(*args, **kwargs):
            if depth[0]:
                return original(*args, **kwargs)
            depth[0] = 1
            self.own_s += time.perf_counter() - self.since_s
            try:
                return original(*args, **kwargs)
            finally:
                depth[0], self.since_s = 0, time.perf_counter()
        return call


meter = Meter()
watch.detach()
seams = [(seam.owner, seam.name) for seam in watch._seams.steering]
for owner, name in seams:
    setattr(owner, name, meter.inside(getattr(owner, name)))
watch.install()
for owner, name in seams:
    setattr(owner, name, meter.outside(getattr(owner, name)))
from torch.optim import optimizer as kind

for hooks in (kind._global_optimizer_pre_hooks, kind._global_optimizer_post_hooks, own_hooks):
    assert hooks, "the hooks of the optimizer"
    for key in hooks:
        hooks[key] = meter.outside(hooks[key])
optimizer._optimizer_step_pre_hooks = own_hooks
block({settle}, True)
for _ in range({rounds}):
    meter.own_s = 0.0
    began_s = time.perf_counter()
    block({block}, True)
    print(meter.own_s, time.perf_counter() - began_s)
"""
PAGE = """\
# What `hasten run` costs beside settings written by hand

{machine}

The training of a small convolutional network under `hasten run` with {levers}. Blocks of {block}
steps, loading included, in one process: with all that hasten put there, and with nothing of it and
the batches converted by the script itself. {rounds} rounds in a random order in each of {launches}
launches; the median ratio of each launch, and their interval.

| | ratio of the CPU time of a step |
|---|---|
| `hasten run` over the settings by hand | {run} |
| the settings by hand over themselves | {again} |
| `hasten run` with the look at source lines of a profile, over without | {looked} |

Timed in place, what the seams and hooks of `hasten run` do besides what they stand for takes
{place} of a step; reading the clocks counts as theirs.

Until the first step has ended, `hasten run` takes {start:.2f} times as long as plain python with
the settings in the source, imports included (medians of the launches, in turn).

Reproduce with `make bench-overhead ARGUMENTS="--launches {launches} --rounds {rounds}"`.
"""


def started_s(words: list[str], folder: Path) -> float:
    """Run a script that ends after its first step; return the seconds until that point."""
    began_s = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        assert process.stdout is not None  # noqa: S101
        begun = process.stdout.readline()
        took_s = time.perf_counter() - began_s
    if begun != "begun\n" or process.returncode:
        raise SystemExit(f"{words} ended early.")
    return took_s


def alternated(words: list[str], folder: Path) -> tuple[list[list[float]], list[float]]:
    """Run the alternating script.

    Returns:
        The seconds of its blocks, with one column per arm, and, block by block, the share of a step
        that hasten's own code takes.
    """
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=folder
    )
    if done.returncode or done.stderr:  # a lever that was left out is reported on stderr
        raise SystemExit(done.stderr or "The script ended early.")
    raced, _, placed = done.stdout.removeprefix("begun\n").partition("in place\n")
    rows = [[float(word) for word in line.split()] for line in raced.splitlines()]
    pairs = [[float(word) for word in line.split()] for line in placed.splitlines()]
    return rows, [own_s / all_s for own_s, all_s in pairs]


def main() -> None:
    """Run the benchmark and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    applied = [word for lever in LEVERS for word in ("--set", lever)]
    run = ["-m", "hasten", "run", "--quiet", *applied]
    coin = random.Random(3)
    logs: dict[str, list[float]] = {"run": [], "again": [], "looked": []}
    shares: list[float] = []
    starts: dict[str, list[float]] = {"hand.py": [], "plain.py": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(asked.launches):
            plain = SCRIPT.format(hand=False, epoch=EPOCH_COUNT)
            turns = (ALTERNATING + IN_PLACE).format(
                seed=number, warm=WARM_COUNT, settle=SETTLE_COUNT, rounds=asked.rounds,
                block=BLOCK_COUNT, arms=ARMS, arm_count=len(ARMS),
            )  # fmt: skip
            (folder / "hand.py").write_text(SCRIPT.format(hand=True, epoch=EPOCH_COUNT))
            (folder / "plain.py").write_text(plain)
            (folder / "turns.py").write_text(plain + turns)
            for script in coin.sample(list(starts), len(starts)):
                words = [script] if script == "hand.py" else [*run, script]
                starts[script].append(started_s(words, folder))
            rows, placed = alternated([*run, "turns.py"], folder)
            shares.append(median(placed))
            for cell, at, over in (("again", 1, 0), ("run", 2, 0), ("looked", 3, 2)):
                logs[cell].append(median(math.log(row[at] / row[over]) for row in rows))
            told = ", ".join(f"{cell} {math.exp(found[-1]):.4f}" for cell, found in logs.items())
            print(f"launch {number + 1}: {told}, in place {shares[-1]:.2%}", flush=True)
    page = PAGE.format(
        machine=machine_line(), launches=asked.launches, rounds=asked.rounds, block=BLOCK_COUNT,
        levers=", ".join(f"`{lever}`" for lever in LEVERS),
        start=median(starts["plain.py"]) / median(starts["hand.py"]),
        place=f"{median(shares):.2%} (launches: {min(shares):.2%} to {max(shares):.2%})",
        **{cell: ratio_cell(ratio(found), digits=3) for cell, found in logs.items()},
    )  # fmt: skip
    (asked.out / "overhead.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
