from pathlib import Path

import numpy as np
import pytest

from tenfold.data.summary import Duplicates, Summary
from tests.checkout import PROJECT


@pytest.fixture
def stripes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Summary:
    """A split of images that are easy to tell apart (upright and lying stripes); the working directory holds it."""
    monkeypatch.chdir(tmp_path)
    for name in ("dvc.yaml", "src"):  # which name and hold the code of the stages
        Path(name).symlink_to(PROJECT / name)
    random = np.random.default_rng(0)
    for part, count in {"train": 200, "val": 40, "test": 40}.items():
        folder = Path("data/split") / part
        folder.mkdir(parents=True)
        labels = np.arange(count, dtype=np.int64) % 2
        images = random.integers(0, 80, (count, 1, 12, 12), dtype=np.uint8)
        images[labels == 0, :, :, ::3] = 255
        images[labels == 1, :, ::3, :] = 255
        np.save(folder / "images.npy", images)
        np.save(folder / "labels.npy", labels)
    return Summary(
        dataset="stripes",
        classes=("lying", "upright"),
        image_shape=(1, 12, 12),
        counts={"train": 200, "val": 40, "test": 40},
        per_class={"train": (100, 100), "val": (20, 20), "test": (20, 20)},
        mean=(0.4,),
        std=(0.4,),
        imbalance=1.0,
        duplicates=Duplicates(copies=0, contradicting=0, val_in_train=0, test_in_train=0, test_in_val=0, removed=0),
        skipped={},
        sha256={},
    )
