"""A script's model, data, loss and optimizer in the form that Lightning and loadtune need.

    cd CHECKOUT/FOLDER
    python BENCHMARKS/rewritten.py --epochs 1     # trains by Lightning's Trainer, all defaults
    loadtune tune BENCHMARKS/rewritten.py         # asks `get_workload` for the parts

The parts are imported from the `main.py` in the working folder. `rivals.py` starts
this for the scripts that are marked for it in `public.json`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

NORMALIZED = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])


def parts() -> SimpleNamespace:
    """Return the parts of the script in the working directory, with its own defaults."""
    sys.path.insert(0, os.getcwd())
    words, sys.argv = sys.argv, ["main.py"]
    try:
        script = importlib.import_module("main")
    finally:
        sys.argv = words
    return vae(script) if hasattr(script, "VAE") else classifier(script)


def vae(script: Any) -> SimpleNamespace:
    """Return the parts of the variational autoencoder."""
    return SimpleNamespace(
        model=script.VAE, transform=transforms.ToTensor(), batch=128, test_batch=128,
        shuffled=True,
        loss=lambda model, batch: script.loss_function(*reconstructed(model, batch[0])),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3), gamma=None,
    )  # fmt: skip


def reconstructed(model: Any, pictures: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return what the autoencoder's loss takes: the reconstruction, the pictures, the moments."""
    again, mean, log_variance = model(pictures)
    return again, pictures, mean, log_variance


def classifier(script: Any) -> SimpleNamespace:
    """Return the parts of a classifier of digits."""
    is_recurrent = hasattr(script.Net(), "rnn")
    return SimpleNamespace(
        model=script.Net, transform=NORMALIZED, batch=64, test_batch=1000, shuffled=is_recurrent,
        loss=lambda model, batch: functional.nll_loss(model(batch[0]), batch[1]),
        optimizer=lambda model: torch.optim.Adadelta(
            model.parameters(), lr=0.1 if is_recurrent else 1.0
        ),
        gamma=0.7,
    )  # fmt: skip


def get_workload() -> Any:
    """Return what loadtune tunes."""
    from loadtune import Workload

    own = parts()

    def train_step(model: Any, optimizer: Any, batch: Any, device: torch.device) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = own.loss(model, [part.to(device) for part in batch])
        loss.backward()
        optimizer.step()
        return loss

    return Workload(
        name="rewritten", make_dataset=lambda: digits(own, train=True), make_model=own.model,
        train_step=train_step, make_optimizer=own.optimizer, default_batch_size=own.batch,
    )  # fmt: skip


def digits(own: SimpleNamespace, *, train: bool) -> Any:
    """Return the dataset as the script opens it."""
    return datasets.MNIST("../data", train=train, transform=own.transform)


def train_by_lightning(own: SimpleNamespace, epochs: int) -> None:
    """Train and validate with a Trainer whose only setting is the number of epochs."""
    import pytorch_lightning as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = own.model()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss: torch.Tensor = own.loss(self.model, batch)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("loss", own.loss(self.model, batch))

        def configure_optimizers(self) -> Any:
            optimizer = own.optimizer(self)
            if own.gamma is None:
                return optimizer
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, own.gamma)]

    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        lightning.Trainer(max_epochs=epochs, default_root_dir=folder).fit(
            Module(),
            DataLoader(digits(own, train=True), batch_size=own.batch, shuffle=own.shuffled),
            DataLoader(digits(own, train=False), batch_size=own.test_batch),
        )


if __name__ == "__main__":
    asked = argparse.ArgumentParser()
    asked.add_argument("--epochs", type=int, required=True)
    count = asked.parse_args().epochs
    train_by_lightning(parts(), count)
