"""The split arrays as Lightning data: a batch is one indexing operation on an array."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from tenfold import paths
from tenfold.errors import TenfoldError

Batch = tuple[Tensor, Tensor]


Auto = Literal["auto"]
Backend = Literal["auto", "memory", "mmap"]
EVAL_VALUES = 1 << 22
FITS_MEMORY = 1 << 30
"""Bytes of images up to which `auto` reads a part of the split into memory."""


class ImageSet(Dataset[Batch]):
    """Images and labels of one part of the split.

    Indexing with a tensor of positions gives a whole batch: images uint8 [N, C, H, W], labels int64 [N]. Nothing else
    is asked of it, so one that streams from elsewhere can take its place.

    Args:
        folder: of the part.
        backend: `memory` reads the images, `mmap` leaves them in the file, of which the system keeps in memory what
            there is room for; `auto` decides by their size.

    Raises:
        TenfoldError: a file of the part is missing or damaged.
    """

    def __init__(self, folder: Path, backend: Backend = "auto") -> None:
        try:
            images = np.load(folder / "images.npy", mmap_mode="c")
            if backend == "memory" or (backend == "auto" and images.nbytes <= FITS_MEMORY):
                images = np.array(images)
            self.is_mapped = isinstance(images, np.memmap)
            self.images = torch.from_numpy(images)
            self.labels = torch.from_numpy(np.load(folder / "labels.npy"))
        except (OSError, ValueError, EOFError) as error:
            raise TenfoldError(
                f"{folder}: no readable images.npy and labels.npy ({error}). Make them: dvc repro split"
            ) from None
        if len(self.images) != len(self.labels) or self.images.dtype != torch.uint8:
            raise TenfoldError(
                f"{folder}: {len(self.images)} images ({self.images.dtype}) and {len(self.labels)} labels do not "
                "belong together. Make them again: dvc repro -f split"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, positions: Tensor) -> Batch:
        return self.images[positions], self.labels[positions]


class TrainBatches(Sampler[Tensor]):
    """The batches of an epoch, in an order that depends on nothing but (seed, epoch, rank).

    A last batch that is not full is left out (a handful of images would upset BatchNorm); the order differs from
    epoch to epoch, and so do the images left out. Every rank gets the same number of batches.
    """

    def __init__(self, count: int, batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> None:
        self.count, self.batch_size, self.seed = count, min(batch_size, max(1, count // world_size)), seed
        self.rank, self.world_size = rank, world_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count // self.world_size // self.batch_size

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(epoch_seed(self.seed, self.epoch))
        order = torch.randperm(self.count, generator=generator)[self.rank :: self.world_size]
        yield from order[: len(self) * self.batch_size].split(self.batch_size)


class EvalBatches(Sampler[Tensor]):
    """All positions in order, in batches; with several ranks, each takes every `world_size`-th image.

    Every rank gets the same number of batches, of which none is empty: a network that is divided among the ranks is
    gathered anew for each. There must be as many images as ranks. `auto` is a batch of 1,000, or as many images as have
    4 million values together.
    """

    def __init__(self, images: ImageSet, batch_size: Auto | int, rank: int = 0, world_size: int = 1) -> None:
        fitting = max(1, min(1000, EVAL_VALUES // images.images[0].numel()))
        size = fitting if batch_size == "auto" else batch_size
        count = min(math.ceil(math.ceil(len(images) / world_size) / size), len(images) // world_size)
        self.batches = torch.arange(rank, len(images), world_size).tensor_split(count)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Tensor]:
        yield from self.batches


def epoch_seed(seed: int, epoch: int, rank: int = 0) -> int:
    """A seed for one epoch on one rank; neighbouring inputs give unrelated seeds."""
    return int(np.random.SeedSequence((seed, epoch, rank)).generate_state(1, np.uint64)[0] >> 1)


def eval_loader(folder: Path, batch_size: Auto | int, backend: Backend = "auto") -> DataLoader[Batch]:
    """One part of the split, whole and in order: images uint8 [N, C, H, W], labels int64 [N]."""
    images = ImageSet(folder, backend)
    return DataLoader(images, batch_size=None, sampler=EvalBatches(images, batch_size))


class ImageData(LightningDataModule):
    """Train and val parts of the split.

    Args:
        batch_size: training images per step and device; Lightning's batch-size finder changes it.
        eval_batch_size: validation images at a time.
        seed: of the order.
        backend: of `ImageSet`.
        folder: of the split.
        loader: more arguments of the `DataLoader`s, such as `num_workers`.
    """

    def __init__(
        self,
        batch_size: int,
        eval_batch_size: Auto | int,
        seed: int,
        backend: Backend = "auto",
        folder: Path = paths.SPLIT,
        **loader: Any,
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.seed = seed
        self.loader = loader
        self.train_set = ImageSet(folder / "train", backend)
        self.val_set = ImageSet(folder / "val", backend)
        self.first_epoch = 0  # of a resumed training: the one that it goes on with
        self.sizes_tried: list[int] = []

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled by (seed, epoch, rank)."""
        self.sizes_tried.append(self.batch_size)
        batches = TrainBatches(len(self.train_set), self.batch_size, self.seed, *self._rank())
        batches.set_epoch(self.first_epoch)  # Lightning does so too late: workers have asked for batches by then
        return self._loader(self.train_set, batches)

    def val_dataloader(self) -> DataLoader[Batch]:
        """In order."""
        return self._loader(self.val_set, EvalBatches(self.val_set, self.eval_batch_size, *self._rank()))

    def _rank(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _loader(self, images: ImageSet, batches: Sampler[Tensor]) -> DataLoader[Batch]:
        return DataLoader(
            images,
            batch_size=None,
            sampler=batches,
            generator=torch.Generator(),  # else each epoch would draw from the global one and shift all that follows
            **self.loader,
        )
