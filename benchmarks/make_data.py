"""Write made data in the formats that the public scripts of these benchmarks read.

    python benchmarks/make_data.py CHECKOUTS

`CHECKOUTS` holds clones of pytorch/examples (as `pytorch-examples`), karpathy/nanoGPT (as
`nanoGPT`) and karpathy/minGPT (as `minGPT`), at the commits of `public.json`; that of
karpathy/makemore (as `makemore`) brings its own data. Losses on made data mean
nothing; sizes, types and file formats are the real ones, so steps take what they take. What is
there already is left alone.
"""

from __future__ import annotations

import argparse
import pickle
import struct
from pathlib import Path

import numpy as np

TRAIN_ROWS, TEST_ROWS = 9_600, 1_000
PICTURES = {"train": 320, "val": 32}
SIDES = (500, 375)
WORDS = {"train": 120_000, "valid": 4_000, "test": 4_000}
VOCABULARY = 8_000
LETTERS = 65


def write_idx(path: Path, values: np.ndarray) -> None:
    """Write an array of bytes in the format of MNIST's files."""
    head = struct.pack(">HBB", 0, 8, values.ndim)
    path.write_bytes(head + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes())


def make_mnist(folder: Path, drawn: np.random.Generator) -> None:
    """Write the four files of MNIST."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", TRAIN_ROWS), ("t10k", TEST_ROWS)):
        pictures = drawn.integers(256, size=(count, 28, 28), dtype=np.uint8)
        write_idx(folder / f"{name}-images-idx3-ubyte", pictures)
        labels = drawn.integers(10, size=count, dtype=np.uint8)
        write_idx(folder / f"{name}-labels-idx1-ubyte", labels)


def make_words(first: Path, drawn: np.random.Generator) -> None:
    """Write three texts of words, in the layout of wikitext-2."""
    folder = first.parent
    folder.mkdir(parents=True, exist_ok=True)
    shares = 1 / np.arange(1, VOCABULARY + 1)
    for name, count in WORDS.items():
        words = drawn.choice(VOCABULARY, size=count, p=shares / shares.sum())
        lines = [" ".join(f"w{word}" for word in words[i : i + 20]) for i in range(0, count, 20)]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def make_letters(first: Path, drawn: np.random.Generator) -> None:
    """Write the files that nanoGPT's prepare.py would make from a text."""
    folder = first.parent
    for name, count in (("train", 1_000_000), ("val", 100_000)):
        drawn.integers(LETTERS, size=count, dtype=np.uint16).tofile(folder / f"{name}.bin")
    letters = [chr(48 + i) for i in range(LETTERS)]
    meta = {
        "vocab_size": LETTERS,
        "itos": dict(enumerate(letters)),
        "stoi": {letter: i for i, letter in enumerate(letters)},
    }
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def make_text(path: Path, drawn: np.random.Generator) -> None:
    """Write the text that minGPT's chargpt reads; it must contain the letters of its prompt."""
    letters = list("\n !',.:;?ABCDGHIJLMNORSTWYabcdefghiklmnoprstuvwy")
    path.write_text("O God, O God!" + "".join(drawn.choice(letters, size=200_000)))


def write_picture(path: Path, drawn: np.random.Generator) -> None:
    """Write a JPEG of smooth shapes with a little grain."""
    from PIL import Image

    shapes = Image.fromarray(drawn.integers(256, size=(9, 12, 3), dtype=np.uint8))
    smooth = np.asarray(shapes.resize(SIDES, Image.Resampling.BICUBIC), dtype=np.int16)
    grain = drawn.integers(-6, 7, size=smooth.shape, dtype=np.int16)
    picture = np.clip(smooth + grain, 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path, "jpeg", quality=90)


def make_classes(folder: Path, drawn: np.random.Generator) -> None:
    """Write JPEG files in one folder per class, as ImageNet scripts read them."""
    for part, count in PICTURES.items():
        for place in range(count):
            write_picture(folder / part / f"class{place % 10}" / f"{place:05d}.jpg", drawn)


def make_pictures(folder: Path, drawn: np.random.Generator) -> None:
    """Write JPEG files in two folders, in the layout of BSDS300."""
    for part, count in (("train", 200), ("test", 20)):
        for place in range(count):
            write_picture(folder / part / f"{place:05d}.jpg", drawn)


def main() -> None:
    """Write the data that does not exist yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    checkouts = parser.parse_args().checkouts
    examples = checkouts / "pytorch-examples"
    todo = (
        (examples / "data" / "MNIST" / "raw", make_mnist),
        (examples / "word_language_model" / "data" / "wikitext-2" / "train.txt", make_words),
        (checkouts / "nanoGPT" / "data" / "shakespeare_char" / "train.bin", make_letters),
        (checkouts / "minGPT" / "projects" / "chargpt" / "input.txt", make_text),
        (checkouts / "data_imagenet", make_classes),
        (examples / "super_resolution" / "dataset" / "BSDS300" / "images", make_pictures),
        (examples / "mnist_forward_forward" / "data" / "MNIST" / "raw", make_mnist),
    )
    for place, make in todo:
        if place.exists():
            continue
        make(place, np.random.default_rng(3))
        print(f"{place}: made", flush=True)
    (examples / "vae" / "results").mkdir(exist_ok=True)


if __name__ == "__main__":
    main()
