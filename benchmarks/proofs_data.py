"""Made data in the formats of public datasets, for the `data` lines in `proofs.json`.

Everything is written under the current folder, from a fixed seed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterable

RANDOM = np.random.default_rng(7)
COUNT = 12


def names(count: int = COUNT, pattern: str = "{:03d}") -> list[str]:
    """Return numbered names."""
    return [pattern.format(one) for one in range(count)]


def pictures(
    folder: str,
    files: Iterable[str] | None = None,
    size: tuple[int, int] = (48, 40),
    mode: str = "RGB",
) -> list[str]:
    """Write noise pictures; return their paths."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = [str(Path(folder, one)) for one in files or names(pattern="{:03d}.jpg")]
    for path in paths:
        shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
        Image.fromarray(RANDOM.integers(0, 256, shape, dtype=np.uint8)).save(path)
    return paths


def masks(
    folder: str, files: Iterable[str], size: tuple[int, int] = (48, 40), top: int = 2, step: int = 1
) -> None:
    """Write pictures of random integers below `top`, times `step`."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for one in files:
        shape = size[1], size[0]
        values = RANDOM.integers(0, top, shape, dtype=np.uint8) * step
        Image.fromarray(values.astype(np.uint8)).save(str(Path(folder, one)))


def text(path: str, lines: Iterable[str]) -> None:
    """Write lines of text."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(f"{line}\n" for line in lines))


def plain(path: str, value: Any) -> None:
    """Write JSON."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(value))


def points(path: str, count: int, columns: int, separator: str = " ", classes: int = 0) -> None:
    """Write a point cloud, one point per line; if `classes`, the last column is a class."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    rows = RANDOM.normal(size=(count, columns))
    if classes:
        rows[:, -1] = RANDOM.integers(0, classes, count)
    np.savetxt(path, rows, fmt="%.4f", delimiter=separator)


def labels(path: str, count: int, classes: int) -> None:
    """Write integers, one per line."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, RANDOM.integers(1, classes + 1, count), fmt="%d")


def wave(path: str, seconds: float, rate: int = 16000) -> None:
    """Write a mono sound file of noise."""
    from scipy.io import wavfile

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    noise = RANDOM.normal(0, 3000, int(seconds * rate))
    wavfile.write(path, rate, noise.astype(np.int16))


def table(path: str, columns: dict[str, Any], **how: Any) -> None:
    """Write a table as CSV."""
    import pandas as pd

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_csv(path, index=False, **how)


def series(path: str, rows: int) -> None:
    """Write hourly figures in the format of ETT."""
    import pandas as pd

    dates = pd.date_range("2016-07-01", periods=rows, freq="h").strftime("%Y-%m-%d %H:%M:%S")
    figures = {one: RANDOM.normal(size=rows) for one in ("HUFL", "HULL", "MUFL", "MULL", "OT")}
    table(path, {"date": dates, **figures})


def h5(path: str, arrays: dict[str, Any], **attributes: Any) -> None:
    """Write arrays into an HDF5 file."""
    import h5py

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        file.attrs.update(attributes)


def digits(folder: str, count: int = 200) -> None:
    """Write MNIST's raw files, filled with noise."""
    raw = Path(folder, "MNIST", "raw")
    raw.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        images = RANDOM.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        heads = np.array([0x803, count, 28, 28], ">i4"), np.array([0x801, count], ">i4")
        known = (np.arange(count) % 10).astype(np.uint8)
        Path(raw, f"{part}-images-idx3-ubyte").write_bytes(heads[0].tobytes() + images.tobytes())
        Path(raw, f"{part}-labels-idx1-ubyte").write_bytes(heads[1].tobytes() + known.tobytes())


def voc(root: str, ids: Iterable[str]) -> None:
    """Write pictures and boxes in the format of Pascal VOC."""
    known = list(ids)
    pictures(f"{root}/JPEGImages", [f"{one}.jpg" for one in known], (64, 48))
    text(f"{root}/ImageSets/Main/trainval.txt", known)
    for one in known:
        box = "".join(f"<{k}>{v}</{k}>" for k, v in zip(
            ("xmin", "ymin", "xmax", "ymax"), (4, 5, 40, 30), strict=True))  # fmt: skip
        thing = f"<object><name>dog</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
        text(f"{root}/Annotations/{one}.xml", [f"<annotation>{thing}{thing}</annotation>"])
