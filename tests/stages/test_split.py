from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tenfold import paths
from tenfold.data.summary import PARTS, Summary
from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.stages import download, split

CHECKOUT = Path(__file__).parents[2]
MNIST = CHECKOUT.parent / "shared/data/mnist"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """The shipped settings with `digits`, downloaded into a project that is the working directory."""
    monkeypatch.chdir(tmp_path)
    shipped = Params.load(CHECKOUT / "params.yaml")
    settings = shipped.model_copy(update={"data": shipped.data.model_copy(update={"dataset": "digits"})})
    download.run(settings)
    return settings


def files() -> dict[str, str]:
    return {
        str(path.relative_to(paths.SPLIT)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(paths.SPLIT.rglob("*"))
        if path.is_file()
    }


def test_digits(settings: Params) -> None:
    split.run(settings)
    arrays = [f"{part}/{name}.npy" for part in PARTS for name in ("images", "labels")]
    assert sorted(files()) == sorted([*arrays, "summary.json"])
    summary = Summary.load()
    assert summary.counts == {"train": 1413, "val": 128, "test": 256}
    assert (summary.dataset, summary.image_shape, summary.classes) == (
        "digits",
        (1, 28, 28),
        tuple("0123456789"),
    )
    for part in PARTS:
        images = np.load(paths.SPLIT / part / "images.npy")
        labels = np.load(paths.SPLIT / part / "labels.npy")
        assert (images.shape, images.dtype) == ((summary.counts[part], 1, 28, 28), np.uint8)
        assert (labels.shape, labels.dtype) == ((summary.counts[part],), np.int64)
        assert tuple(np.bincount(labels)) == summary.per_class[part]
        content = images.tobytes() + labels.tobytes()
        assert summary.sha256[part] == hashlib.sha256(content).hexdigest()


def test_the_same_bytes_again_and_others_with_another_seed(settings: Params) -> None:
    split.run(settings)
    first = files()
    split.run(settings)
    assert files() == first
    split.run(settings.model_copy(update={"seed": 43}))
    assert files()["train/labels.npy"] != first["train/labels.npy"]


@pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST's files are not beside the checkout")
def test_mnist_has_the_official_test_set_in_its_order(settings: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", str(MNIST))
    settings = settings.model_copy(update={"data": settings.data.model_copy(update={"dataset": "mnist"})})
    download.run(settings)
    split.run(settings)
    summary = Summary.load()
    assert summary.counts == {"train": 55_000, "val": 5_000, "test": 10_000}
    assert np.load("data/split/test/labels.npy")[:5].tolist() == [7, 2, 1, 0, 4]
    assert summary.mean == pytest.approx([0.1307], abs=2e-4)
    assert summary.std == pytest.approx([0.3081], abs=2e-4)
    official = settings.split.model_copy(update={"test_size": 5000})
    with pytest.raises(TenfoldError, match=r"split.test_size: found 5000, but .* official test set, of 10,000"):
        split.run(settings.model_copy(update={"split": official}))


def test_a_failure_leaves_what_was_there(settings: Params) -> None:
    split.run(settings)
    first = files()
    too_large = settings.split.model_copy(update={"val_size": 5000})
    with pytest.raises(TenfoldError, match=r"split.val_size: found 5,000, but at most"):
        split.run(settings.model_copy(update={"split": too_large}))
    assert files() == first
    assert sorted(path.name for path in Path("data").iterdir()) == ["raw", "split"]


def test_a_damaged_file_is_refused_with_the_way_out(settings: Params) -> None:
    path = paths.RAW / "digits-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TenfoldError, match=r"digits-labels-idx1-ubyte: expected 1,797 .* tenfold download"):
        split.run(settings)
    assert not paths.SPLIT.exists()
