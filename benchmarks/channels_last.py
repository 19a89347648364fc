"""channels_last on activations only, compared with converting the weights too.

In one process and one thread, three forms alternate step by step: plain, weights and images
converted by hand, and the lever. Ratios above 1 beat plain; intervals are the middle half.

    python benchmarks/channels_last.py

writes benchmarks/channels_last.md.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from torch import nn

from hasten.child import AppliedLevers
from hasten.instrument import Watch

ROUNDS, WARM = 14, 3
FORMS = ("plain", "by hand", "lever")


def layers(kind: Any, norm: Any, pool: Any, *widths: int) -> list[nn.Module]:
    """Return blocks of two convolutions, each block followed by a pool."""
    found, before = [], 3
    for width in widths:
        for first in (before, width):
            found += [kind(first, width, 3, padding=1), norm(width), nn.ReLU(inplace=True)]
        found.append(pool(2))
        before = width
    return found


class Residual(nn.Module):
    """Two convolutions with a skip connection, as in ResNet-18."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
        self.around = nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        """Add the output of the convolutions to the skip connection."""
        out = torch.relu(self.norms[0](self.one(x)))
        return torch.relu(self.norms[1](self.two(out)) + self.around(x))


def networks() -> dict[str, tuple[nn.Module, Any]]:
    """Return three networks, each with an input."""
    vgg = layers(nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, 32, 64, 128)
    sizes = ((3, 64, 1), (64, 64, 1), (64, 128, 2), (128, 256, 2))
    video = layers(nn.Conv3d, nn.BatchNorm3d, nn.MaxPool3d, 16, 32)
    return {
        "VGG, 32 x 3 x 32 x 32": (
            nn.Sequential(*vgg, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
            torch.rand(32, 3, 32, 32),
        ),
        "ResNet, 8 x 3 x 48 x 48": (
            nn.Sequential(*(Residual(*size) for size in sizes), nn.AdaptiveAvgPool2d(1),
                          nn.Flatten(), nn.Linear(256, 10)),
            torch.rand(8, 3, 48, 48),
        ),
        "3-D, 4 x 3 x 16 x 32 x 32": (
            nn.Sequential(*video, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, 10)),
            torch.rand(4, 3, 16, 32, 32),
        ),
    }  # fmt: skip


def step_s(net: nn.Module, optimizer: Any, images: Any) -> list[float]:
    """Return the seconds of forward, backward, update and the whole step."""
    optimizer.zero_grad()
    ends = [time.perf_counter()]
    loss = net(images).logsumexp(1).mean()
    ends.append(time.perf_counter())
    loss.backward()
    ends.append(time.perf_counter())
    optimizer.step()
    ends.append(time.perf_counter())
    return [ends[1] - ends[0], ends[2] - ends[1], ends[3] - ends[2], ends[3] - ends[0]]


def measure(name: str, applied: AppliedLevers) -> list[str]:
    """Return the table rows for one network."""
    taken: dict[str, list[list[float]]] = {form: [] for form in FORMS}
    made = {}
    for form in FORMS:
        torch.manual_seed(0)
        net, images = networks()[name]
        if form == "by hand":
            last = torch.channels_last if images.dim() == 4 else torch.channels_last_3d
            net, images = net.to(memory_format=last), images.to(memory_format=last)
        made[form] = net, torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9), images
    for turn in range(ROUNDS + WARM):
        for form in FORMS[turn % 3 :] + FORMS[: turn % 3]:
            applied.switch({"channels_last": True} if form == "lever" else {})
            took = step_s(*made[form])
            if turn >= WARM:
                taken[form].append(took)
    rows = []
    for form in FORMS[1:]:
        cells = []
        for part in range(4):
            ratios = [p[part] / c[part] for p, c in zip(taken["plain"], taken[form], strict=True)]
            low, middle, high = quantiles(ratios, n=4)
            cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
        rows.append(f"| {name} | {form} | {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Measure, and write the page."""
    torch.set_num_threads(1)
    watch = Watch(measuring=False)
    applied = AppliedLevers(watch.live)
    watch.install()
    page = [
        "# channels_last", "",
        f"Written by [channels_last.py](channels_last.py): torch {torch.__version__}, one thread,"
        f" {ROUNDS} rounds, in turns. Plain torch's time over that of a form:"
        " above 1 is faster. In brackets: the middle half. *By hand* converts weights and"
        " images; the *lever* converts activations alone, so weights and their gradients are"
        " reordered in each step.", "",
        "| network | form | forward | backward | update | step |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name in networks():
        page += measure(name, applied)
    text = "\n".join(page) + "\n"
    print(text)
    Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
