from pathlib import Path

import numpy as np
import pytest
import torch

from tenfold.data import datamodule
from tenfold.data.datamodule import EvalBatches, ImageData, ImageSet, TrainBatches, epoch_seed, eval_loader
from tenfold.errors import TenfoldError


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A split of 103 train, 23 val and 10 test images whose first pixel is their position."""
    for part, count in {"train": 103, "val": 23, "test": 10}.items():
        folder = tmp_path / part
        folder.mkdir()
        images = np.zeros((count, 1, 4, 4), np.uint8)
        images[:, 0, 0, 0] = np.arange(count)
        np.save(folder / "images.npy", images)
        np.save(folder / "labels.npy", np.arange(count, dtype=np.int64) % 10)
    return tmp_path


def data(split: Path, **more: int) -> ImageData:
    return ImageData(batch_size=16, eval_batch_size=10, seed=1, folder=split, **more)  # type: ignore[arg-type]


def positions(loader: torch.utils.data.DataLoader[tuple[torch.Tensor, torch.Tensor]]) -> list[int]:
    return [int(pixel) for images, _ in loader for pixel in images[:, 0, 0, 0]]


def test_batches_are_whole_uint8_and_keep_images_and_labels_together(split: Path) -> None:
    batches = list(data(split).train_dataloader())
    assert [len(labels) for _, labels in batches] == [16] * 6  # 103 = 6 * 16 + 7: the rest is left out
    for images, labels in batches:
        assert images.dtype == torch.uint8
        assert images.shape[1:] == (1, 4, 4)
        assert torch.equal(images[:, 0, 0, 0] % 10, labels)


def test_validation_sees_every_image_once_in_order(split: Path) -> None:
    assert positions(data(split).val_dataloader()) == list(range(23))
    assert positions(eval_loader(split / "test", batch_size=4)) == list(range(10))


def test_order_depends_on_seed_and_epoch_alone(split: Path) -> None:
    def order(seed: int, epoch: int, noise: int, workers: int = 0) -> list[int]:
        torch.manual_seed(noise)
        loader = data(split, num_workers=workers).train_dataloader()
        loader.sampler.seed = seed  # type: ignore[attr-defined]
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        return positions(loader)

    first = order(seed=1, epoch=0, noise=1)
    assert order(seed=1, epoch=0, noise=2) == first
    assert order(seed=1, epoch=0, noise=3, workers=2) == first
    assert order(seed=1, epoch=1, noise=1) != first
    assert order(seed=2, epoch=0, noise=1) != first
    assert len(set(first)) == len(first)


def test_drawing_batches_leaves_the_global_generator_alone(split: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    positions(data(split).train_dataloader())
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_the_images_without_overlap(split: Path, world_size: int) -> None:
    ranks = [TrainBatches(103, 8, seed=1, rank=rank, world_size=world_size) for rank in range(world_size)]
    drawn = [[int(p) for batch in rank for p in batch] for rank in ranks]
    assert len({len(rank) for rank in ranks}) == 1
    assert len({p for rank in drawn for p in rank}) == sum(map(len, drawn))
    seen = [
        int(p)
        for rank in range(world_size)
        for batch in EvalBatches(ImageSet(split / "train"), 8, rank, world_size)
        for p in batch
    ]
    assert sorted(seen) == list(range(103))


@pytest.mark.parametrize("world_size", [1, 2, 3, 16, 103])
@pytest.mark.parametrize("size", [1, 8, 51, 1000])
def test_all_ranks_validate_in_as_many_batches(split: Path, world_size: int, size: int) -> None:
    """A divided network is gathered for each batch, by all ranks together."""
    images = ImageSet(split / "train")
    ranks = [list(EvalBatches(images, size, rank, world_size)) for rank in range(world_size)]
    assert len({len(rank) for rank in ranks}) == 1
    assert sorted(int(p) for rank in ranks for batch in rank for p in batch) == list(range(103))
    lengths = [len(batch) for rank in ranks for batch in rank]
    assert min(lengths) > 0
    assert max(lengths) <= max(size, 2)


def test_fewer_large_images_at_a_time(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [len(labels) for _, labels in eval_loader(split / "train", "auto")] == [103]
    monkeypatch.setattr(datamodule, "EVAL_VALUES", 40 * 16)
    assert [len(labels) for _, labels in eval_loader(split / "train", "auto")] == [35, 34, 34]
    monkeypatch.setattr(datamodule, "EVAL_VALUES", 1)
    assert len(eval_loader(split / "val", "auto")) == 23


def test_a_batch_larger_than_the_data_is_all_of_it() -> None:
    assert [len(batch) for batch in TrainBatches(10, 64, seed=1)] == [10]


def test_epoch_seeds_differ() -> None:
    seeds = {epoch_seed(seed, epoch, rank) for seed in range(10) for epoch in range(10) for rank in range(3)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_missing_and_damaged_parts(split: Path) -> None:
    with pytest.raises(TenfoldError, match=r"nowhere: no readable images.npy.*dvc repro split"):
        ImageSet(split / "nowhere")
    (split / "val" / "images.npy").write_bytes(b"\x93NUMPY broken")
    with pytest.raises(TenfoldError, match=r"val: no readable images\.npy"):
        ImageSet(split / "val")
    np.save(split / "test" / "labels.npy", np.zeros(3, np.int64))
    with pytest.raises(TenfoldError, match=r"10 images .* and 3 labels do not belong together"):
        ImageSet(split / "test")


def rss_anon() -> int:
    """Anonymous memory of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells anonymous memory apart")
def test_mapped_images_take_no_anonymous_memory(tmp_path: Path) -> None:
    size = 200 << 20
    written = np.lib.format.open_memmap(tmp_path / "images.npy", "w+", np.uint8, (size // 4096, 1, 64, 64))
    written[:] = 7
    written.flush()
    np.save(tmp_path / "labels.npy", np.zeros(len(written), np.int64))
    before = rss_anon()
    images = ImageSet(tmp_path, "mmap")
    total = sum(int(images[batch][0].sum()) for batch in TrainBatches(len(images), 256, seed=1))
    assert total == 7 * size
    assert rss_anon() - before < size // 4
    in_memory = ImageSet(tmp_path, "memory")
    assert rss_anon() - before > size // 2
    assert torch.equal(in_memory[torch.arange(5)][0], images[torch.arange(5)][0])


def test_large_parts_are_mapped_by_themselves(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not ImageSet(split / "train").is_mapped
    monkeypatch.setattr(datamodule, "FITS_MEMORY", 103 * 16 - 1)
    assert ImageSet(split / "train").is_mapped
    assert not ImageSet(split / "val").is_mapped
    assert not ImageSet(split / "train", "memory").is_mapped
