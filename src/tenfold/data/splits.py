"""Train, val and test: a stratified choice of images, and the arrays and summary that later stages read.

The choice depends on the labels, the sizes and the seed only: the same on every platform and numpy version.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tenfold import params
from tenfold.data.sources import Images
from tenfold.data.summary import PARTS, Summary
from tenfold.errors import TenfoldError

Indices = NDArray[np.int64]


def choose(
    labels: Indices, classes: Sequence[str], sizes: params.Split, seed: int, official_test: int | None = None
) -> dict[str, Indices]:
    """Which images go to which part: disjoint, ascending indices into `labels` [N].

    Test and val hold of each class their share to within one image, and at least one; train holds its share,
    or what they leave. With an official test set (of `official_test` images, none of them in `labels`) there
    is no "test" in the answer. With the same seed, a smaller train is part of a larger one, but for rounding.

    Raises:
        TenfoldError: the sizes are impossible for these labels; the message names the key and the class.
    """
    if official_test is not None and sizes.test_size != "auto":
        raise TenfoldError(
            f"split.test_size: found {sizes.test_size}, but this data set has an official test set, of "
            f"{official_test:,} images: set it to auto"
        )
    parts = [part for part in PARTS if part != "test" or official_test is None]
    available = np.bincount(labels, minlength=len(classes))
    scarce = int(available.argmin())
    if available[scarce] < len(parts):
        raise TenfoldError(
            f"split: class {classes[scarce]!r} has {available[scarce]} images, but {', '.join(parts)} need "
            "one each: add images of it, or remove the class"
        )
    # By sorting raw numbers: numpy promises that those stay the same for a seed, not that its shuffling does.
    order = np.argsort(np.random.PCG64(seed).random_raw(len(labels)), kind="stable")
    members = [order[labels[order] == label] for label in range(len(classes))]
    chosen: dict[str, Indices] = {}
    taken = np.zeros_like(available)
    for later_parts, part in reversed(list(enumerate(parts))):  # train last: it may be all that is left
        rest = available - taken
        size = _size(part, sizes, int(rest.sum()))
        counts = _apportion(size, available, rest - later_parts, f"split.{part}_size", classes)
        picks = [m[start : start + n] for m, start, n in zip(members, taken, counts, strict=True)]
        chosen[part] = np.sort(np.concatenate(picks))
        taken = taken + counts
    return {part: chosen[part] for part in parts}


def _size(part: str, sizes: params.Split, rest: int) -> int:
    """The size of a part, `rest` being the number of images not yet given away."""
    setting, automatic = {
        "test": (sizes.test_size, rest // 7),
        "val": (sizes.val_size, rest // 12),
        "train": (sizes.train_size, rest),
    }[part]
    return setting if isinstance(setting, int) else automatic


def _apportion(size: int, shares: Indices, room: Indices, key: str, classes: Sequence[str]) -> Indices:
    """`size` images in proportion to `shares`, by largest remainders; of each class 1 … `room`."""
    if size > room.sum():
        raise TenfoldError(f"{key}: found {size:,}, but at most {room.sum():,} are possible")
    total = shares.sum()
    counts: Indices = np.minimum(np.maximum(size * shares // total, 1), room)
    if counts.sum() > size:
        rare = classes[int(shares.argmin())]
        raise TenfoldError(
            f"{key}: {size:,} images are too few: in proportion, class {rare!r} would have none of them. "
            f"Set a larger number (there are {len(classes)} classes)"
        )
    while counts.sum() < size:
        remainders = np.where(counts < room, size * shares - counts * total, np.iinfo(np.int64).min)
        counts[remainders.argmax()] += 1
    return counts


def save(folder: Path, part: Images) -> None:
    """Write `images.npy` (uint8 [N, C, H, W]) and `labels.npy` (int64 [N]) into a new folder."""
    folder.mkdir(parents=True)
    np.save(folder / "images.npy", part.images)
    np.save(folder / "labels.npy", part.labels)


def summarise(dataset: str, classes: Sequence[str], parts: Mapping[str, Images]) -> Summary:
    """Describe a split. The same numbers on every platform: pixels are summed as whole numbers."""
    mean, std = _statistics(parts["train"].images)
    _, *shape = parts["train"].images.shape
    return Summary(
        dataset=dataset,
        classes=tuple(classes),
        image_shape=(shape[0], shape[1], shape[2]),
        counts={name: len(part.labels) for name, part in parts.items()},
        per_class={
            name: tuple(np.bincount(part.labels, minlength=len(classes)).tolist()) for name, part in parts.items()
        },
        mean=mean,
        std=std,
        sha256={name: _sha256(part) for name, part in parts.items()},
    )


def _statistics(images: NDArray[np.uint8], chunk: int = 1024) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, on a scale of 0…1, a chunk of images at a time."""
    channels = images.shape[1]
    histograms = np.zeros((channels, 256), np.int64)
    for start in range(0, len(images), chunk):
        for channel in range(channels):
            histograms[channel] += np.bincount(images[start : start + chunk, channel].ravel(), minlength=256)
    values = np.arange(256)
    mean, std = list[float](), list[float]()
    for histogram in histograms:
        n, first, second = (int((histogram * values**power).sum()) for power in range(3))
        mean.append(round(first / n / 255, 6))
        std.append(round(math.sqrt(n * second - first**2) / n / 255, 6))
    return tuple(mean), tuple(std)


def _sha256(part: Images) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(part.images).data)
    digest.update(part.labels.astype("<i8").tobytes())
    return digest.hexdigest()
