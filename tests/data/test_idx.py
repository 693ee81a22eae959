from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
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


def test_a_label_out_of_range_is_refused(tmp_path: Path) -> None:
    idx.write(tmp_path / "labels", LABELS)
    with pytest.raises(TenfoldError, match="expected labels 0…1, found 2 at position 1"):
        idx.read_labels(tmp_path / "labels", classes=2)


def test_images_and_labels_of_different_number_are_refused(tmp_path: Path) -> None:
    idx.write(tmp_path / "images", PIXELS)
    idx.write(tmp_path / "labels", LABELS[:2])
    with pytest.raises(TenfoldError, match=r"labels: expected 3 labels, one per image of .*images, found 2"):
        idx.read_pair(tmp_path / "images", tmp_path / "labels", classes=3)


def test_the_checks_hold_under_python_o(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(idx_bytes(PIXELS, tmp_path)[:-1])
    code = "import pathlib, sys; from tenfold.data import idx; idx.read_images(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-O", "-c", code, str(tmp_path / "images")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "TenfoldError" in done.stderr
    assert "cut short" in done.stderr
