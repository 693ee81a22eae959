from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from tenfold.data import splits
from tenfold.data import summary as summary_module
from tenfold.data.arrays import Images, Raw
from tenfold.data.summary import Duplicates
from tenfold.errors import TenfoldError
from tenfold.params import Split

TEN = tuple("0123456789")


def sizes(
    train: int | Literal["all"] = "all",
    val: int | Literal["auto"] = "auto",
    test: int | Literal["auto"] = "auto",
) -> Split:
    return Split(train_size=train, val_size=val, test_size=test, folds=None, fold=0, deduplicate=False)


def labels(*counts: int, seed: int = 0) -> splits.Indices:
    """So many labels of each class, shuffled."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


def test_the_sizes_of_mnist() -> None:
    parts = splits.choose(labels(*[6000] * 10), TEN, sizes(), 42, official_test=10_000)
    assert {name: len(indices) for name, indices in parts.items()} == {"train": 55_000, "val": 5_000}


def test_the_sizes_without_an_official_test_set() -> None:
    parts = splits.choose(labels(*[180] * 10), TEN, sizes(), 42)
    assert {name: len(part) for name, part in parts.items()} == {
        "train": 1800 - 257 - 128,
        "val": 128,
        "test": 257,
    }


def test_auto_has_room_for_every_class() -> None:
    parts = splits.choose(labels(*[3] * 40), [str(n) for n in range(40)], sizes(), 42)
    assert {name: len(part) for name, part in parts.items()} == {"train": 40, "val": 40, "test": 40}


def test_given_sizes() -> None:
    parts = splits.choose(labels(*[180] * 10), TEN, sizes(300, 100, 50), 42)
    assert {name: len(part) for name, part in parts.items()} == {"train": 300, "val": 100, "test": 50}


@pytest.mark.parametrize("seed", range(40))
def test_stratified_disjoint_and_whole(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(20, 400, size=rng.integers(2, 12))
    targets = labels(*counts, seed=seed)
    val, test = (int(n) for n in rng.integers(len(targets) // 10, len(targets) // 4, size=2))
    parts = splits.choose(targets, [str(n) for n in range(len(counts))], sizes("all", val, test), seed)
    assert {name: len(part) for name, part in parts.items() if name != "train"} == {"val": val, "test": test}
    np.testing.assert_array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(len(targets)))
    for part in parts.values():
        share = np.bincount(targets[part], minlength=len(counts)) - len(part) * counts / counts.sum()
        # Train is what two parts leave that are within one image each.
        assert abs(share).max() < (2 if part is parts["train"] else 1)
        assert (np.diff(part) > 0).all()


def test_a_subset_of_train_is_stratified_and_nested() -> None:
    targets = labels(*range(50, 550, 50))
    small, large = (splits.choose(targets, TEN, sizes(n, 200), 1, official_test=1)["train"] for n in (500, 1000))
    assert set(small) < set(large)
    share = np.bincount(targets[small], minlength=10) - 500 * np.bincount(targets) / len(targets)
    assert abs(share).max() < 1


def test_a_rare_class_is_in_every_part() -> None:
    targets = labels(1000, 3)
    for part in splits.choose(targets, ("a", "b"), sizes("all", 20, 20), 7).values():
        assert (targets[part] == 1).sum() == 1


def test_the_choice_is_a_function_of_the_seed_and_never_changes() -> None:
    targets = np.arange(1000) % 10

    def digest(seed: int) -> str:
        parts = splits.choose(targets, TEN, sizes(), seed)
        return hashlib.sha256(b"".join(part.astype("<i8").tobytes() for part in parts.values())).hexdigest()

    assert digest(42) == digest(42) != digest(43)
    assert digest(42) == "795b8f5b38898808f216e6a599bed2cc46c261ff52dc469a333e9936935b4036"


@pytest.mark.parametrize(
    ("request_", "official", "message"),
    [
        (
            sizes(test=50),
            10,
            "split.test_size: found 50, but this data set has an official test set, of 10 images",
        ),
        (sizes(val=100), 10, "split.val_size: found 100, but at most 97 are possible"),
        (sizes(val=10_000), 10, "split.val_size: found 10,000, but at most 97 are possible"),
        (sizes(test=95), None, "split.test_size: found 95, but at most 94 are possible"),
        (sizes(train=93), 10, "split.train_size: found 93, but at most 92 are possible"),
        (sizes(val=2), 10, "split.val_size: 2 images are too few: in proportion, class 'c' would have none"),
    ],
)
def test_an_impossible_size_is_refused_by_its_key(request_: Split, official: int | None, message: str) -> None:
    with pytest.raises(TenfoldError) as error:
        splits.choose(labels(60, 37, 3), ("a", "b", "c"), request_, 1, official_test=official)
    assert message in str(error.value)


def test_a_class_too_small_for_the_parts_is_refused_by_name() -> None:
    with pytest.raises(TenfoldError, match="class 'cat' has 2 images, but train, val, test need one each"):
        splits.choose(labels(50, 2), ("dog", "cat"), sizes(), 1)
    assert len(splits.choose(labels(50, 2), ("dog", "cat"), sizes(), 1, official_test=9)["val"]) == 4


NONE = Duplicates(copies=0, contradicting=0, val_in_train=0, test_in_train=0, test_in_val=0, removed=0)


def parts_of(shape: tuple[int, ...]) -> dict[str, Images]:
    rng = np.random.default_rng(5)
    made = {}
    for n, name in enumerate(summary_module.PARTS):
        images = rng.integers(0, 256, size=(20 + n, *shape), dtype=np.uint8)
        made[name] = Images(images, np.arange(20 + n) % 2)
    return made


def test_the_summary_says_what_the_arrays_hold(tmp_path: Path) -> None:
    parts = parts_of((3, 8, 6))
    summary = splits.summarise("some", ("no", "yes"), parts, NONE, {"no/a.png": "cut short"})
    train = parts["train"].images / 255
    np.testing.assert_allclose(summary.mean, train.mean((0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(summary.std, train.std((0, 2, 3)), atol=1e-6)
    assert summary.image_shape == (3, 8, 6)
    assert summary.counts == {"train": 20, "val": 21, "test": 22}
    assert summary.per_class == {"train": (10, 10), "val": (11, 10), "test": (11, 11)}
    assert (summary.imbalance, summary.skipped) == (1.0, {"no/a.png": "cut short"})
    content = parts["val"].images.tobytes() + parts["val"].labels.astype("<i8").tobytes()
    assert summary.sha256["val"] == hashlib.sha256(content).hexdigest()
    summary.save(tmp_path / "summary.json")
    assert summary_module.Summary.load(tmp_path / "summary.json") == summary
    assert json.loads((tmp_path / "summary.json").read_text())["image_shape"] == [3, 8, 6]


def test_nothing_depends_on_the_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, chosen = parts_of((2, 5, 5))["test"], np.array([1, 4, 5, 20, 21])

    def results() -> tuple[object, ...]:
        saved = splits.save(tmp_path / str(splits.CHUNK_BYTES), part, chosen)
        return (
            splits._statistics(part.images),
            splits._sha256(part),
            splits.content_ids(part.images, part.images).tolist(),
            saved.images.tobytes(),
        )

    whole = results()
    monkeypatch.setattr(splits, "CHUNK_BYTES", 150)
    assert results() == whole


def test_what_is_saved_is_what_was_chosen(tmp_path: Path) -> None:
    part, chosen = parts_of((1, 4, 4))["test"], np.array([0, 3, 21])
    splits.save(tmp_path / "test", part, chosen)
    images, targets = np.load(tmp_path / "test/images.npy"), np.load(tmp_path / "test/labels.npy")
    np.testing.assert_array_equal(images, part.images[chosen])
    np.testing.assert_array_equal(targets, part.labels[chosen])
    assert (images.dtype, targets.dtype) == (np.uint8, np.int64)
    np.save(tmp_path / "plain.npy", part.images[chosen])
    assert (tmp_path / "plain.npy").read_bytes() == (tmp_path / "test/images.npy").read_bytes()


@pytest.mark.parametrize("official", [None, 9])
def test_folds_are_stratified_disjoint_and_whole(official: int | None) -> None:
    counts = (53, 20, 101, 7)
    targets = labels(*counts, seed=3)
    seen, sizes_of_val, test = list[int](), list[int](), None
    for fold in range(5):
        request_ = sizes().model_copy(update={"folds": 5, "fold": fold})
        parts = splits.choose(targets, ("a", "b", "c", "d"), request_, 11, official_test=official)
        assert not set(parts["val"]) & set(parts["train"])
        rest = np.bincount(targets) - np.bincount(targets[parts["test"]], minlength=4) if "test" in parts else counts
        assert abs(np.bincount(targets[parts["val"]]) - np.array(rest) / 5).max() < 1
        sizes_of_val.append(len(parts["val"]))
        seen += parts["val"].tolist()
        everything = set().union(*(set(part) for part in parts.values()))
        assert everything == set(range(len(targets)))
        if "test" in parts:
            assert test is None or set(parts["test"]) == test, "the test set is the same for all folds"
            test = set(parts["test"])
    assert len(seen) == len(set(seen)) == len(targets) - len(test or ())
    assert max(sizes_of_val) - min(sizes_of_val) <= 1


def test_more_folds_than_a_class_has_images_are_refused() -> None:
    with pytest.raises(TenfoldError, match=r"split.folds: found 5, but class 'rare' has only 4 images"):
        splits.choose(labels(50, 4), ("many", "rare"), sizes().model_copy(update={"folds": 5}), 1, official_test=3)


def small_raw() -> Raw:
    """Pool: 0 and 3 are the same, 1 is in the test set, 2 and 4 are the same but for the label, 5 is alone."""
    pixels = np.array([10, 20, 30, 10, 30, 50, 20, 60], np.uint8)[:, None, None, None] * np.ones((1, 1, 2, 2), np.uint8)
    targets = np.array([0, 1, 0, 0, 1, 1, 1, 0])
    return Raw(("no", "yes"), Images(pixels[:6], targets[:6]), Images(pixels[6:], targets[6:]))


def test_duplicates_are_found_by_content_and_removed() -> None:
    raw = small_raw()
    assert raw.test is not None
    ids = splits.content_ids(raw.pool.images, raw.test.images)
    assert ids.tolist() == [0, 1, 2, 0, 2, 5, 1, 7]
    assert splits.unique(raw, ids).tolist() == [0, 5]


def test_duplicates_are_counted_by_where_they_are() -> None:
    ids = {"train": np.array([0, 1, 0, 3]), "val": np.array([1, 4]), "test": np.array([3, 4, 4, 9])}
    targets = {"train": np.array([0, 0, 0, 1]), "val": np.array([1, 1]), "test": np.array([1, 1, 1, 0])}
    assert splits.count_duplicates(ids, targets, removed=2) == Duplicates(
        copies=5, contradicting=1, val_in_train=1, test_in_train=1, test_in_val=2, removed=2
    )


@pytest.mark.parametrize("content", [None, "", "{}", '{"dataset": 3}', "[" * 5])
def test_a_missing_or_foreign_summary_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "summary.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TenfoldError, match=r"summary.json: (cannot be read|is no summary).*dvc repro split"):
        summary_module.Summary.load(path)
