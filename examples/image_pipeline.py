"""Train a small CNN on JPEG files: which of four shapes does a picture show?

The pictures are drawn once into --data. Every item is opened, decoded, resized and augmented
in the main process, as in countless scripts that began life on a small data set.
"""

import argparse
import math
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

SHAPES = ["circle", "square", "triangle", "star"]
CACHE = Path(tempfile.gettempdir()) / "shapes-jpeg"


def corners(count, inner, radius, angle, center):
    """Give the corners of a regular polygon or, with inner < 1, of a star."""
    points = []
    for i in range(count):
        r = radius * (inner if i % 2 else 1.0)
        a = angle + 2 * math.pi * i / count
        points.append((center[0] + r * math.cos(a), center[1] + r * math.sin(a)))
    return points


def draw_picture(label, rng, size):
    noise = np.random.default_rng(rng.randrange(2**32)).integers(90, 166, (12, 12, 3), np.uint8)
    image = Image.fromarray(noise).resize((size, size), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    color = tuple(rng.randrange(256) for _ in range(3))
    radius = rng.uniform(0.18, 0.32) * size
    center = (rng.uniform(0.4, 0.6) * size, rng.uniform(0.4, 0.6) * size)
    angle = rng.uniform(0, 2 * math.pi)
    if SHAPES[label] == "circle":
        draw.circle(center, radius, fill=color)
    else:
        count, inner = {"square": (4, 1.0), "triangle": (3, 1.0), "star": (10, 0.4)}[SHAPES[label]]
        draw.polygon(corners(count, inner, radius, angle, center), fill=color)
    return image.filter(ImageFilter.GaussianBlur(1))


def draw_pictures(folder, count, size=448):
    done = folder / f"{count}-pictures.done"
    if done.exists():
        return
    for i in range(count):
        label = i % len(SHAPES)
        path = folder / SHAPES[label] / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_picture(label, random.Random(i), size).save(path, quality=90)
    done.touch()


class Pictures(Dataset):
    def __init__(self, files, train):
        self.files = files
        self.train = train

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        image = Image.open(path).convert("RGB").resize((72, 72), Image.Resampling.BILINEAR)
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        x = self.augment(x) if self.train else x[:, 4:68, 4:68]
        return (x - 0.5) / 0.25, SHAPES.index(path.parent.name)

    @staticmethod
    def augment(x):
        top, left = torch.randint(0, 9, (2,)).tolist()
        x = x[:, top : top + 64, left : left + 64]
        if torch.rand(()) < 0.5:
            x = x.flip(2)
        brightness, contrast, saturation = (0.7 + 0.6 * torch.rand(3)).tolist()
        x = x * brightness
        x = (x - x.mean()) * contrast + x.mean()
        gray = x.mean(0, keepdim=True)
        x = gray + (x - gray) * saturation
        return x.clamp(0, 1)


class Net(nn.Module):
    def __init__(self, widths=(24, 48, 96, 96), classes=4):
        super().__init__()
        blocks = []
        for before, after in zip((3, *widths), widths, strict=False):
            blocks += [
                nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
        self.features = nn.Sequential(*blocks)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def train_one_epoch(model, loader, optimizer):
    model.train()
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    return total / len(loader.dataset)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=CACHE, help="folder of the pictures")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the checkpoints")
    parser.add_argument("--pictures", type=int, default=640)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    draw_pictures(args.data, args.pictures)
    files = sorted(args.data.glob("*/*.jpg"), key=lambda path: path.name)[: args.pictures]
    cut = len(files) * 4 // 5
    train_set, valid_set = Pictures(files[:cut], train=True), Pictures(files[cut:], train=False)
    loaders = {"batch_size": args.batch_size, "num_workers": args.workers}
    train_loader = DataLoader(train_set, shuffle=True, **loaders)
    valid_loader = DataLoader(valid_set, **loaders)

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    args.out.mkdir(parents=True, exist_ok=True)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        loss = train_one_epoch(model, train_loader, optimizer)
        accuracy = evaluate(model, valid_loader)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch:3d}  loss {loss:.4f}  accuracy {accuracy:.3f}  {seconds:.1f} s")
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, args.out / "checkpoint.pt")


if __name__ == "__main__":
    main()
