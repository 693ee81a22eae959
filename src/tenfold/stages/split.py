"""Stage split: divide the images into train, val and test, as uint8 arrays in `data/split/`."""

from __future__ import annotations

import numpy as np

from tenfold import paths
from tenfold.data import folders, sources, splits
from tenfold.data.summary import Summary
from tenfold.datasets import FOLDER
from tenfold.params import Params


def run(params: Params) -> None:
    """Write `data/split/`, whole or not at all.

    Raises:
        TenfoldError: a file in `data/raw/` is missing or damaged, or the sizes in `split` are impossible.
    """
    dataset = params.data.dataset
    raw = folders.read(paths.RAW) if dataset == FOLDER else sources.read(dataset, paths.RAW)
    official = len(raw.test.labels) if raw.test else None
    ids = splits.content_ids(raw.pool.images, *([raw.test.images] if raw.test else []))
    everything = np.arange(len(raw.pool.labels))
    kept = splits.unique(raw, ids) if params.split.deduplicate else everything

    chosen = splits.choose(raw.pool.labels[kept], raw.classes, params.split, params.seed, official)
    places = {part: kept[indices] for part, indices in chosen.items()}
    with paths.writing(paths.SPLIT) as folder:
        parts = {part: splits.save(folder / part, raw.pool, indices) for part, indices in places.items()}
        if raw.test and official:
            parts["test"] = splits.save(folder / "test", raw.test, np.arange(official))
            places["test"] = len(everything) + np.arange(official)
        duplicates = splits.count_duplicates(
            {part: ids[indices] for part, indices in places.items()},
            {part: images.labels for part, images in parts.items()},
            removed=len(everything) - len(kept),
        )
        summary = splits.summarise(dataset, raw.classes, parts, duplicates, raw.skipped)
        summary.save(folder / paths.SUMMARY.name)
    report(summary)


def report(summary: Summary) -> None:
    """Say in a few lines what there is, and what may be wrong with it."""
    print(f"{summary.dataset}: " + ", ".join(f"{count:,} {name}" for name, count in summary.counts.items()), flush=True)
    found = summary.duplicates
    if found.copies:
        print(
            f"split: {found.copies:,} images are there more than once ({found.contradicting:,} of them with different "
            f"labels): {found.val_in_train:,} of val and {found.test_in_train:,} of test are in train, "
            f"{found.test_in_val:,} of test in val. To remove them: split.deduplicate"
        )
    if summary.skipped:
        print(f"split: {len(summary.skipped):,} files could not be read and were left out: {paths.SUMMARY} lists them")
