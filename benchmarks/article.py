"""The way of the articles that this project grew from, on today's Lightning: the baseline of the other benchmarks.

Each sample becomes a PIL image, a tensor and a normalised tensor by itself, as in torchvision's MNIST; a `DataLoader`
puts 32 of them together; the 54 K network is trained in full precision by RMSprop, and the weights with the best
validation accuracy are tested. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from pytorch_lightning import LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy
from torchvision import transforms

from tenfold.modeling.networks import NetworkSpec, build
from tenfold.training.quiet import quieten


class Digits(Dataset[tuple[Tensor, int]]):
    """Images of a part of the split, one at a time, each through its transforms."""

    def __init__(self, folder: Path, count: int | None = None) -> None:
        self.images = torch.from_numpy(np.load(folder / "images.npy")[:count, 0])
        self.labels = torch.from_numpy(np.load(folder / "labels.npy")[:count])
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.images[index].numpy(), mode="L")), int(self.labels[index])


class ArticleModule(LightningModule):
    """The network, RMSprop, cross-entropy."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        classes = tuple("0123456789")
        self.layers = build(NetworkSpec("article", 32, 0.0, 1, (28, 28), classes, (0.0,), (1.0,))).layers
        self.learning_rate = learning_rate
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images [N, 1, 28, 28] to logits [N, 10]."""
        logits: Tensor = self.layers(images)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Count what is right."""
        self.accuracy(self(batch[0]), batch[1])
        self.log("val_acc", self.accuracy)

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Count what is right."""
        self.accuracy(self(batch[0]), batch[1])
        self.log("test_acc", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """RMSprop."""
        return torch.optim.RMSprop(self.parameters(), lr=self.learning_rate)


def main() -> None:
    """Train and test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", type=Path, default=Path("data/split"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=0.0005)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, help="of the training images, the first so many")
    print(json.dumps(train(parser.parse_args())))


def train(chosen: argparse.Namespace) -> dict[str, Any]:
    """Fit as the article does; seconds of the fit, and accuracies."""
    quieten()
    warnings.filterwarnings("ignore", message=".*'mode' parameter.*")
    seed_everything(chosen.seed, verbose=False)
    loaders = {
        part: DataLoader(
            Digits(chosen.split / part, chosen.samples if part == "train" else None),
            batch_size=32,
            shuffle=part == "train",
            num_workers=chosen.workers,
            persistent_workers=chosen.workers > 0,
        )
        for part in ("train", "val", "test")
    }
    with tempfile.TemporaryDirectory() as folder:
        best = ModelCheckpoint(folder, monitor="val_acc", mode="max")
        trainer = Trainer(
            max_epochs=chosen.epochs,
            accelerator="cpu",
            logger=False,
            callbacks=[best],
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        module = ArticleModule(chosen.learning_rate)
        started = time.perf_counter()
        trainer.fit(module, loaders["train"], loaders["val"])
        seconds = time.perf_counter() - started
        (tested,) = trainer.test(
            module, loaders["test"], ckpt_path=best.best_model_path, verbose=False, weights_only=True
        )
    best_val = float(best.best_model_score) if best.best_model_score is not None else 0.0
    return {"fit_s": seconds, "val_acc": best_val, "test_acc": tested["test_acc"]}


if __name__ == "__main__":
    main()
