from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from tenfold.data import idx
from tenfold.errors import TenfoldError

PIXELS = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
LABELS = np.array([0, 2, 1], np.uint8)


def idx_bytes(values: np.ndarray, tmp_path: Path) -> bytes:
    idx.write(tmp_path / "plain", values)
    return (tmp_path / "plain").read_bytes()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_what_is_written_is_read(tmp_path: Path, suffix: str) -> None:
    images, labels = tmp_path / f"images{suffix}", tmp_path / f"labels{suffix}"
    idx.write(images, PIXELS)
    idx.write(labels, LABELS)
    assert images.read_bytes().startswith(b"\x1f\x8b" if suffix else b"\0\0\x08\x03\0\0\0\x03\0\0\0\x04\0\0\0\x05")
    pixels, targets = idx.read_pair(images, labels, classes=3)
    np.testing.assert_array_equal(pixels, PIXELS)
    np.testing.assert_array_equal(targets, LABELS)
    assert pixels.dtype == np.uint8
    assert targets.dtype == np.int64


def damaged(tmp_path: Path) -> dict[str, tuple[str, bytes, str]]:
    """Name: (file name, content, what the error must say)."""
    good = idx_bytes(PIXELS, tmp_path)
    packed = gzip.compress(good)
    return {
        "wrong magic": ("images", b"PNG!" + good[4:], "expected IDX images (magic 00000803), found 76 bytes"),
        "another type": (
            "images",
            b"\0\0\x0d\x03" + good[4:],
            "expected IDX images (magic 00000803), found 76",
        ),
        "labels": ("images", idx_bytes(LABELS, tmp_path), "found IDX labels: are images and labels swapped?"),
        "gzip without .gz": ("images", packed, "expected a plain file, as its name does not end in .gz"),
        "plain in .gz": (
            "images.gz",
            good,
            "expected a gzip file, as its name ends in .gz, found IDX images",
        ),
        "html in .gz": ("images.gz", b"<html>no</html>", "expected a gzip file"),
        "half a header": ("images", good[:10], "expected a header of 16 bytes, found 10 bytes in all"),
        "too short": (
            "images",
            good[:-1],
            "expected 60 bytes after the header (3×4×5), found 59: it is cut short",
        ),
        "trailing": (
            "images",
            good + b"ab",
            "expected 60 bytes after the header (3×4×5), found 62: 2 trailing",
        ),
        "no images": ("images", good[:4] + bytes(12), "expected at least one value, found a header of 0×0×0"),
        "empty": ("images", b"", "found an empty file"),
        "empty .gz": ("images.gz", b"", "found an empty file"),
        "nothing in .gz": ("images.gz", gzip.compress(b""), "found nothing"),
        "gzip cut short": ("images.gz", packed[:-9], "found one cut short"),
        "gzip trailing": ("images.gz", packed + bytes(7), "found 7 trailing bytes after its end"),
        "gzip bits flipped": ("images.gz", packed[:-8] + b"\xff" + packed[-7:], "found a damaged one"),
    }


@pytest.mark.parametrize("case", damaged(Path("/tmp")))
def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, case: str) -> None:
    name, content, message = damaged(tmp_path)[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TenfoldError, match=re.escape(message)) as error:
        idx.read_images(tmp_path / name)
    assert str(error.value).startswith(f"{tmp_path / name}: expected")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TenfoldError, match=r"gone: cannot be read \(No such file or directory\)"):
        idx.read_images(tmp_path / "gone")


def test_images_are_no_labels(tmp_path: Path) -> None:
    idx.write(tmp_path / "labels", PIXELS)
    with pytest.raises(TenfoldError, match=r"expected IDX labels .* found IDX images: are images and labels swapped"):
        idx.read_labels(tmp_path / "labels", classes=3)


def test_images_and_labels_swapped_are_refused(tmp_path: Path) -> None:
    idx.write(tmp_path / "images", LABELS)
    idx.write(tmp_path / "labels", PIXELS)
    with pytest.raises(TenfoldError, match=r"images: expected IDX images .* are images and labels swapped"):
        idx.read_pair(tmp_path / "images", tmp_path / "labels", classes=3)


@pytest.mark.parametrize(
    ("first", "message"), [(0, "expected labels 0…1, found 2 at position 1"), (1, "expected labels 1…2, found 0 at")]
)
def test_a_label_out_of_range_is_refused(tmp_path: Path, first: int, message: str) -> None:
    idx.write(tmp_path / "labels", LABELS)
    with pytest.raises(TenfoldError, match=message) as error:
        idx.read_labels(tmp_path / "labels", classes=2, first=first)
    assert str(error.value).startswith(str(tmp_path / "labels"))


def test_labels_that_count_from_one(tmp_path: Path) -> None:
    idx.write(tmp_path / "labels", LABELS + 1)
    assert idx.read_labels(tmp_path / "labels", classes=3, first=1).tolist() == LABELS.tolist()


def test_a_plain_file_is_mapped_not_read(tmp_path: Path) -> None:
    path = tmp_path / "images"
    with path.open("wb") as file:  # 8 GiB of nothing, which take no room on the disk
        file.write(b"\0\0\x08\x03" + np.array([2**13, 2**10, 2**10], ">u4").tobytes())
        file.truncate(16 + 2**33)
    before = psutil.Process().memory_info().rss
    assert idx.read_images(path)[-1, -1, -1] == 0
    assert psutil.Process().memory_info().rss - before < 2**24


def test_images_and_labels_of_different_number_are_refused(tmp_path: Path) -> None:
    idx.write(tmp_path / "images", PIXELS)
    idx.write(tmp_path / "labels", LABELS[:2])
    with pytest.raises(TenfoldError, match=r"labels: expected 3 labels, one per image of .*images, found 2"):
        idx.read_pair(tmp_path / "images", tmp_path / "labels", classes=3)


def test_the_checks_hold_under_python_o(tmp_path: Path) -> None:
    cases = damaged(tmp_path)
    for number, (name, content, _) in enumerate(cases.values()):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / name).write_bytes(content)
    idx.write(tmp_path / "labels", LABELS)
    code = """
import pathlib, sys
from tenfold.data import idx
from tenfold.errors import TenfoldError
def check(read, *args):
    try:
        read(*args)
    except TenfoldError as error:
        print(error)
folder = pathlib.Path(sys.argv[1])
for number in range(int(sys.argv[2])):
    check(idx.read_images, *(folder / str(number)).iterdir())
check(idx.read_labels, folder / "labels", 2)
"""
    command = [sys.executable, "-O", "-c", code, str(tmp_path), str(len(cases))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    messages = [message for _, _, message in cases.values()] + ["expected labels 0…1, found 2 at position 1"]
    for line, message in zip(done.stdout.splitlines(), messages, strict=True):
        assert message in line
