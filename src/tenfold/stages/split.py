"""Stage split: divide the images into train, val and test, as uint8 arrays in `data/split/`."""

from tenfold import paths
from tenfold.data import sources, splits
from tenfold.data.sources import Images
from tenfold.params import Params


def run(params: Params) -> None:
    """Write `data/split/`, whole or not at all.

    Raises:
        TenfoldError: a file in `data/raw/` is missing or damaged, or the sizes in `split` are impossible.
    """
    dataset = params.data.dataset
    classes = sources.DATASETS[dataset].classes
    pool, official = sources.read(dataset, paths.RAW)

    chosen = splits.choose(pool.labels, classes, params.split, params.seed, len(official.labels) if official else None)
    parts = {part: Images(pool.images[indices], pool.labels[indices]) for part, indices in chosen.items()}
    if official:
        parts["test"] = official

    summary = splits.summarise(dataset, classes, parts)
    with paths.writing(paths.SPLIT) as folder:
        for name, part in parts.items():
            splits.save(folder / name, part)
        summary.save(folder / paths.SUMMARY.name)
    print(f"{dataset}: " + ", ".join(f"{count:,} {name}" for name, count in summary.counts.items()), flush=True)
