"""Train, val and test: a stratified choice of images, and the arrays and summary that later stages read.

The choice depends on the labels, the sizes and the seed only: the same on every platform and numpy version.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tenfold import params
from tenfold.data.arrays import Images, Raw
from tenfold.data.summary import FILES, PARTS, Duplicates, Summary
from tenfold.errors import TenfoldError

Indices = NDArray[np.int64]
CHUNK_BYTES = 1 << 22
"""Of images, that are worked on at a time: memory does not grow with the data set."""


def choose(
    labels: Indices, classes: Sequence[str], sizes: params.Split, seed: int, official_test: int | None = None
) -> dict[str, Indices]:
    """Which images go to which part: disjoint, ascending indices into `labels` [N].

    Test and val hold of each class their share to within one image, and at least one; train holds its share,
    or what they leave. With `sizes.folds`, val is one of so many stratified parts of what is not test. With an
    official test set (of `official_test` images, none of them in `labels`) there is no "test" in the answer. With the
    same seed, a smaller train is part of a larger one, but for rounding.

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
    for later_parts, part in reversed(list(enumerate(parts))):  # train last: it may be all that is left
        if part == "val" and sizes.folds:
            picks = _fold(members, sizes.folds, sizes.fold, classes)
        else:
            rest = np.array([len(member) for member in members])
            size = _size(part, sizes, rest)
            counts = _apportion(size, available, rest - later_parts, f"split.{part}_size", classes)
            picks = [member[:count] for member, count in zip(members, counts, strict=True)]
        chosen[part] = np.sort(np.concatenate(picks))
        members = [member[~np.isin(member, pick)] for member, pick in zip(members, picks, strict=True)]
    return {part: chosen[part] for part in parts}


def _fold(members: list[Indices], folds: int, fold: int, classes: Sequence[str]) -> list[Indices]:
    """Of each class every `folds`-th image, counted on from class to class, so that folds differ by one at most."""
    sizes = [len(member) for member in members]
    if min(sizes) < folds:
        raise TenfoldError(
            f"split.folds: found {folds}, but class {classes[sizes.index(min(sizes))]!r} has only {min(sizes)} images "
            "that are not test"
        )
    starts = np.cumsum([0, *sizes[:-1]])
    return [member[(fold - start) % folds :: folds] for member, start in zip(members, starts, strict=True)]


def _size(part: str, sizes: params.Split, rest: Indices) -> int:
    """The size of a part, `rest` being the number of images of each class not yet given away."""
    total, classes = int(rest.sum()), len(rest)
    setting, automatic = {
        "test": (sizes.test_size, max(total // 7, classes)),
        "val": (sizes.val_size, max(total // 12, classes)),
        "train": (sizes.train_size, total),
    }[part]
    return setting if isinstance(setting, int) else automatic


def _apportion(size: int, shares: Indices, room: Indices, key: str, classes: Sequence[str]) -> Indices:
    """`size` images in proportion to `shares`, by largest remainders; of each class 1 … `room`."""
    if size > room.sum():
        hint = "; `all` takes them" if key == "split.train_size" else ""
        raise TenfoldError(f"{key}: found {size:,}, but at most {room.sum():,} are possible{hint}")
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


def content_ids(*sets: NDArray[np.uint8]) -> Indices:
    """For each image of these sets, put end to end, the position of the first one with the same pixels."""
    first: dict[bytes, int] = {}
    ids = list[int]()
    for images in sets:
        for chunk in _chunks(images):
            rows = chunk.reshape(-1).data
            size = len(rows) // len(chunk)
            for start in range(0, len(rows), size):
                digest = hashlib.blake2b(rows[start : start + size], digest_size=16).digest()
                ids.append(first.setdefault(digest, len(ids)))
    return np.array(ids)


def unique(raw: Raw, ids: Indices) -> Indices:
    """The images of `raw.pool` to keep so that no two of the data set are the same.

    An official test set keeps all of its own. Of others, the first is kept, or none if they have different labels.

    Args:
        raw: the data set.
        ids: `content_ids` of the pool and the official test set.

    Returns:
        Ascending indices into the pool.
    """
    pool, official = ids[: len(raw.pool.labels)], ids[len(raw.pool.labels) :]
    is_first = pool == np.arange(len(pool))
    contradicted = pool[raw.pool.labels != raw.pool.labels[pool]]
    return np.flatnonzero(is_first & ~np.isin(pool, official) & ~np.isin(pool, contradicted))


def count_duplicates(ids: Mapping[str, Indices], labels: Mapping[str, Indices], removed: int) -> Duplicates:
    """Count the images that are there more than once.

    Args:
        ids: of each part, what `content_ids` says of its images.
        labels: of each part.
        removed: how many were left out.
    """
    targets = np.concatenate([labels[part] for part in PARTS])
    everything = np.concatenate([ids[part] for part in PARTS])
    found, first, group = np.unique(everything, return_index=True, return_inverse=True)
    return Duplicates(
        copies=len(everything) - len(found),
        contradicting=int((targets != targets[first][group]).sum()),
        val_in_train=int(np.isin(ids["val"], ids["train"]).sum()),
        test_in_train=int(np.isin(ids["test"], ids["train"]).sum()),
        test_in_val=int(np.isin(ids["test"], ids["val"]).sum()),
        removed=removed,
    )


def save(folder: Path, part: Images, chosen: Indices) -> Images:
    """Write `images.npy` (uint8 [N, C, H, W]), `labels.npy` (int64 [N]) and `files.json`, if known, into a new folder.

    Args:
        folder: of the part.
        part: what is chosen from.
        chosen: indices of what is written.

    Returns:
        What was written, the images mapped from the file.
    """
    folder.mkdir(parents=True)
    file = folder / "images.npy"
    written = np.lib.format.open_memmap(file, "w+", np.uint8, (len(chosen), *part.images.shape[1:]))
    step = _per_chunk(part.images)
    for start in range(0, len(chosen), step):
        written[start : start + step] = part.images[chosen[start : start + step]]
    written.flush()
    labels = part.labels[chosen]
    np.save(folder / "labels.npy", labels)
    if part.files:
        names = [part.files[number] for number in chosen]
        (folder / FILES).write_text(json.dumps(names, indent=0) + "\n", encoding="utf-8")
    return Images(np.load(file, mmap_mode="r"), labels)


def summarise(
    dataset: str,
    classes: Sequence[str],
    parts: Mapping[str, Images],
    duplicates: Duplicates,
    skipped: Mapping[str, str],
) -> Summary:
    """Describe a split. The same numbers on every platform: pixels are summed as whole numbers."""
    mean, std = _statistics(parts["train"].images)
    _, *shape = parts["train"].images.shape
    per_class = {name: np.bincount(part.labels, minlength=len(classes)) for name, part in parts.items()}
    return Summary(
        dataset=dataset,
        classes=tuple(classes),
        image_shape=(shape[0], shape[1], shape[2]),
        counts={name: len(part.labels) for name, part in parts.items()},
        per_class={name: tuple(counts.tolist()) for name, counts in per_class.items()},
        imbalance=round(int(per_class["train"].max()) / int(per_class["train"].min()), 3),
        mean=mean,
        std=std,
        duplicates=duplicates,
        skipped=dict(skipped),
        sha256={name: _sha256(part) for name, part in parts.items()},
    )


def _statistics(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, on a scale of 0…1."""
    n, channels = images.size // images.shape[1], range(images.shape[1])
    first, second = [0] * len(channels), [0] * len(channels)
    for chunk in _chunks(images):
        for channel in channels:
            values = chunk[:, channel].ravel().astype(np.float64)  # whole numbers, exact up to 2^53 in any order
            first[channel] += int(values.sum())
            second[channel] += int(values @ values)
    mean = tuple(round(first[channel] / n / 255, 6) for channel in channels)
    std = tuple(round(math.sqrt(n * second[channel] - first[channel] ** 2) / n / 255, 6) for channel in channels)
    return mean, std


def _sha256(part: Images) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(part.images):
        digest.update(chunk.data)
    digest.update(part.labels.astype("<i8").tobytes())
    return digest.hexdigest()


def _chunks(images: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    """The images, a few at a time, in one piece of memory each."""
    step = _per_chunk(images)
    for start in range(0, len(images), step):
        yield np.ascontiguousarray(images[start : start + step])


def _per_chunk(images: NDArray[np.uint8]) -> int:
    return max(1, CHUNK_BYTES // max(1, math.prod(images.shape[1:])))
