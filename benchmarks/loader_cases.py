"""The cases of `loader.py`: a script, its data, its levers and the ratio to reach."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from loader_scripts import (
    BLAS,
    CIFAR,
    DICTS,
    DRAWS,
    FILES,
    HEAD,
    ROWS,
    SERVE,
    SHORT,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

CACHE = "2GiB"  # more than the pictures need


@dataclass(frozen=True, kw_only=True)
class Case:
    """One script, the levers applied to it and the ratio to reach.

    Attributes:
        name: a single word, for `--only`.
        what: what is measured, for the table.
        body: the script, without the parts that all cases share.
        numbers: values for the `$` placeholders in the script.
        quick: smaller values, for a quick test of the benchmark itself.
        levers: the levers that `hasten run` applies.
        target_ratio: the ratio that it must reach; None if the ratio is only reported.
        is_living: both processes stay alive and their blocks alternate; else each block is a fresh
            process, because the cost lies in the start or the first epoch.
        has_peers: other engines can run it too.
        needs: packages that must be installed.
        make: writes the data into a folder.
    """

    name: str
    what: str
    body: str
    numbers: Mapping[str, int]
    quick: Mapping[str, int]
    levers: Mapping[str, Any]
    target_ratio: float | None = None
    is_living: bool = False
    has_peers: bool = False
    needs: tuple[str, ...] = ()
    make: Callable[[Path, Mapping[str, int]], None] | None = None
    defaults: Mapping[str, int] = field(
        default_factory=lambda: {"WORKERS": 0, "EPOCHS": 2, "HASHED": 3, "TRAINS": 0}
    )

    def settings(self, *, quick: bool) -> dict[str, int]:
        """Return the values for the script's placeholders."""
        fewer = {"HASHED": 2, **self.quick} if quick else {}
        return {**self.defaults, **self.numbers, **fewer}

    def script(self, folder: Path, **numbers: int) -> str:
        """Return the text of the script."""
        return Template(HEAD + self.body + SERVE).substitute(numbers, FOLDER=folder)


def make_cifar(folder: Path, numbers: Mapping[str, int]) -> None:
    """Write files in the CIFAR-10 format, with generated pictures."""
    drawn = np.random.default_rng(3)
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    count = numbers["ROWS"] // 5
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        pixels = drawn.integers(256, size=(count, 3072), dtype=np.uint8)
        labels = drawn.integers(10, size=count).tolist()
        (batches / name).write_bytes(pickle.dumps({"data": pixels, "labels": labels}))
    names = {"label_names": [f"class {i}" for i in range(10)]}
    (batches / "batches.meta").write_bytes(pickle.dumps(names))


def make_files(folder: Path, numbers: Mapping[str, int]) -> None:
    """Write JPEG and PNG files of synthetic photographs: smooth shapes with a little grain."""
    from PIL import Image

    drawn = np.random.default_rng(3)
    for place in range(numbers["ROWS"]):
        kind, suffix = ("jpeg", "jpg") if place % 2 else ("png", "png")
        home = folder / f"class{place % 10}"
        home.mkdir(parents=True, exist_ok=True)
        shapes = Image.fromarray(drawn.integers(256, size=(12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(shapes.resize((640, 480), Image.Resampling.BICUBIC), dtype=np.int16)
        grain = drawn.integers(-6, 7, size=smooth.shape, dtype=np.int16)
        picture = np.clip(smooth + grain, 0, 255).astype(np.uint8)
        Image.fromarray(picture).save(home / f"{place:05d}.{suffix}", kind)


CASES = (
    Case(
        name="rows",
        what="in-memory rows, 50,000 x 32, batch 128, shuffled: time in the loader",
        body=ROWS,
        numbers={"ROWS": 50_000, "WIDTH": 32, "EPOCHS": 1},
        quick={"ROWS": 5_000},
        levers={"batched_fetch": True},
        target_ratio=10.0,
        is_living=True,
        has_peers=True,
    ),
    Case(
        name="wide-rows",
        what="in-memory rows of 12 KB, 4,000 x 3,072: time in the loader",
        body=ROWS,
        numbers={"ROWS": 4_000, "WIDTH": 3_072, "EPOCHS": 4},
        quick={"ROWS": 1_000},
        levers={"batched_fetch": True},
        target_ratio=3.0,
        is_living=True,
    ),
    Case(
        name="cifar",
        what="CIFAR10 with ToTensor and Normalize: time in the loader",
        body=CIFAR,
        numbers={"ROWS": 10_000, "EPOCHS": 1},
        quick={"ROWS": 2_000},
        levers={"batched_fetch": True},
        target_ratio=25.0,
        is_living=True,
        has_peers=True,
        needs=("torchvision",),
        make=make_cifar,
    ),
    Case(
        name="files",
        what="ImageFolder of JPEG and PNG files, resized, cropped, flipped, 6 epochs: end to end",
        body=FILES,
        numbers={"ROWS": 64, "EPOCHS": 6, "TRAINS": 1},
        quick={"ROWS": 16},
        levers={"sample_cache": CACHE, "loader_workers": 2},
        target_ratio=5.0,
        has_peers=True,
        needs=("torchvision", "PIL"),
        make=make_files,
    ),
    Case(
        name="short-epochs",
        what="60 epochs of 4 batches with 2 workers: end to end",
        body=SHORT,
        numbers={"WORKERS": 2, "EPOCHS": 60, "TRAINS": 1},
        quick={"EPOCHS": 10},
        levers={"loader_workers": 2},
        target_ratio=2.5,
    ),
    Case(
        name="blas",
        what="matrix products in numpy in each item, 2 workers: time in the loader",
        body=BLAS,
        numbers={
            "WORKERS": 2,
            "EPOCHS": 6,
            "HASHED": 2,
            "ROWS": 256,
            "WIDTH": 160,
            "PRODUCTS": 10,
        },
        quick={"PRODUCTS": 2, "ROWS": 32, "EPOCHS": 1},
        levers={"worker_threads": 1},
        target_ratio=3.0,
    ),
    Case(
        name="dicts",
        what="small dicts of numpy arrays, 12 workers in the script, 3 epochs: time in the loader",
        body=DICTS,
        numbers={"WORKERS": 12, "ROWS": 4_000, "EPOCHS": 3},
        quick={"ROWS": 1_000},
        levers={"loader_workers": 0},
        target_ratio=2.5,
        has_peers=True,
    ),
    Case(
        name="draws",
        what="items that draw random numbers, no workers in the script: end to end",
        body=DRAWS,
        numbers={"ROWS": 600, "WORDS": 100, "TRAINS": 1},
        quick={"ROWS": 100},
        levers={"loader_workers": 2},
        is_living=True,
    ),
)
