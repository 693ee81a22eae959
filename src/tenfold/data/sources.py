"""Named data sets: which files they are made of, where those come from, and how they are read.

A data set is one entry in `DATASETS`. Every file is held against its checksums, wherever it came from.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tenfold import paths
from tenfold.data import idx
from tenfold.errors import TenfoldError

MIRROR_VARIABLE = "TENFOLD_DATA_MIRROR"
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10, 30


class Images(NamedTuple):
    """Images, uint8 [N, C, H, W], and their labels, int64 [N]."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class File:
    """A file by name, with the MD5 of the file itself and, of a `.gz` file, of its unpacked content."""

    name: str
    md5: str
    md5_unpacked: str | None = None


@dataclass(frozen=True)
class Dataset:
    """A data set of IDX files: its class names, files (images, labels), and where they come from."""

    classes: tuple[str, ...]
    train: tuple[File, File]
    test: tuple[File, File] | None = None
    """The official test set, if there is one."""
    mirrors: tuple[str, ...] = ()
    make: Callable[[Path], None] | None = None
    """Writes the files into a folder, for a data set that a library brings along."""

    @property
    def files(self) -> tuple[File, ...]:
        """All files."""
        return self.train + (self.test or ())


def _make_digits(folder: Path) -> None:
    """The 1,797 digits of scikit-learn (8×8, grey values 0…16), brought to 28×28 and 0…255.

    Bilinear, in whole numbers: the same bytes on every machine.
    """
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    centers = (4 * np.arange(28) - 5).clip(0, 98)  # of the 28 pixels, in fourteenths of one of the 8
    weights = (14 - abs(centers[:, None] - 14 * np.arange(8))).clip(0)
    large = weights @ small.astype(np.int64).reshape(-1, 8, 8) @ weights.T
    idx.write(folder / "digits-images-idx3-ubyte", ((large * 255 + 1568) // (14 * 14 * 16)).astype(np.uint8))
    idx.write(folder / "digits-labels-idx1-ubyte", labels.astype(np.uint8))


DIGITS = tuple("0123456789")

DATASETS = {
    "mnist": Dataset(
        classes=DIGITS,
        train=(
            File(
                "train-images-idx3-ubyte.gz",
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "6bbc9ace898e44ae57da46a324031adb",
            ),
            File(
                "train-labels-idx1-ubyte.gz",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "a25bea736e30d166cdddb491f175f624",
            ),
        ),
        test=(
            File(
                "t10k-images-idx3-ubyte.gz",
                "9fb629c4189551a2d022fa330f9573f3",
                "2646ac647ad5339dbf082846283269ea",
            ),
            File(
                "t10k-labels-idx1-ubyte.gz",
                "ec29112dd5afa0611ce80d1b7f02629c",
                "27ae3e4e09519cfbb04c329615203637",
            ),
        ),
        # As in torchvision's MNIST.
        mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    ),
    "digits": Dataset(
        classes=DIGITS,
        train=(
            File("digits-images-idx3-ubyte", "aa2ebf8317bf9c658b155e901cc4ea37"),
            File("digits-labels-idx1-ubyte", "497796a0698e25d3920a9422b635bf34"),
        ),
        make=_make_digits,
    ),
}


def obtain(name: str, folder: Path) -> None:
    """Put the verified files of a data set into an existing folder.

    Tried in turn: `data/raw`, `../shared/data/<name>` beside the main checkout, `TENFOLD_DATA_MIRROR` (a URL
    or a folder that holds the files, or a folder `<name>` with them), the built-in mirrors.

    Raises:
        TenfoldError: a file could be had nowhere; the message lists what was tried, and why it failed.
    """
    dataset = DATASETS[name]
    if dataset.make:
        dataset.make(folder)
        for file in dataset.files:
            try:
                _verify(folder / file.name, file)
            except _MissedError as miss:
                raise TenfoldError(f"data.dataset: {name}: {file.name} as made here {miss}") from None
        print(f"{name}: {', '.join(file.name for file in dataset.files)}, made here", flush=True)
        return
    missing, tried = list(dataset.files), list[str]()
    for source in _sources(name):
        for file in tuple(missing):
            try:
                _fetch(source, file, folder / file.name)
            except _MissedError as miss:
                place = source if miss.source_is_down else _join(source, file.name)
                tried.append(_without_password(f"{place}: {miss}"))
                print(f"{name}: {tried[-1]}", flush=True)
                if miss.source_is_down:
                    break
            else:
                missing.remove(file)
                size = (folder / file.name).stat().st_size
                print(_without_password(f"{name}: {file.name}, {size:,} bytes, from {source}"), flush=True)
    if missing:
        raise TenfoldError(
            f"data.dataset: {name}: cannot get {', '.join(file.name for file in missing)}. Tried:\n  "
            + "\n  ".join(tried)
            + f"\nConnect to the network, or set {MIRROR_VARIABLE} to a URL or a folder that has the files, "
            "or choose the data set that needs no network: `data.dataset: digits` in params.yaml."
        )


def read(name: str, folder: Path) -> tuple[Images, Images | None]:
    """The images of a data set, and its official test set if it has one.

    Raises:
        TenfoldError: a file is missing, or is not what it should be.
    """
    dataset = DATASETS[name]
    try:
        pool = _read(folder, dataset.train, len(dataset.classes))
        official = _read(folder, dataset.test, len(dataset.classes)) if dataset.test else None
    except TenfoldError as error:
        raise TenfoldError(f"{error}. To get the files of {name} anew: tenfold download") from None
    if official and official.images.shape[1:] != pool.images.shape[1:]:
        expected, found = pool.images.shape[1:], official.images.shape[1:]
        raise TenfoldError(f"{name}: expected test images of shape {expected}, as in train, found {found}")
    return pool, official


def _read(folder: Path, files: tuple[File, File], classes: int) -> Images:
    images, labels = idx.read_pair(folder / files[0].name, folder / files[1].name, classes)
    return Images(images[:, None], labels)


class _MissedError(Exception):
    """One source did not give one file; the source may be down altogether."""

    def __init__(self, reason: str, source_is_down: bool = False) -> None:
        super().__init__(reason)
        self.source_is_down = source_is_down


def _sources(name: str) -> list[Path | str]:
    """Folders and URLs, in the order in which they are tried."""
    home = paths.home()
    found: list[Path | str] = [paths.RAW] if paths.RAW.is_dir() else []
    found.append(home.parent / "shared/data" / name)
    if mirror := os.environ.get(MIRROR_VARIABLE):
        if mirror.startswith(("http://", "https://")):
            found += [mirror, _join(mirror, name)]
        elif "://" in mirror:
            raise TenfoldError(
                f"{MIRROR_VARIABLE}: expected a URL with http:// or https://, or a folder; found {mirror!r}"
            )
        else:  # a relative one hangs on the main checkout, also in a temporary DVC experiment
            root = home / Path(mirror).expanduser()
            found += [root, root / name]
    return [*found, *DATASETS[name].mirrors]


def _join(source: Path | str, name: str) -> str:
    return str(source / name) if isinstance(source, Path) else f"{source.rstrip('/')}/{name}"


def _without_password(text: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", text)


def _fetch(source: Path | str, file: File, target: Path) -> None:
    """Bring one verified file from one source, or raise `_MissedError` and leave no file."""
    try:
        if isinstance(source, Path):
            _copy(source, file.name, target)
        else:
            _download(_join(source, file.name), target)
        _verify(target, file)
    except _MissedError:
        target.unlink(missing_ok=True)
        raise


def _copy(folder: Path, name: str, target: Path) -> None:
    if not folder.is_dir():
        raise _MissedError("no such folder", source_is_down=True)
    try:
        shutil.copyfile(folder / name, target)
    except OSError as error:
        raise _MissedError(f"cannot be copied ({error.strerror})") from None


def _download(url: str, target: Path) -> None:
    """Stream a file over HTTP, through the proxy of the environment if there is one."""
    import pooch
    import requests

    get = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(),
        chunk_size=1 << 16,
        timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
        headers={"Accept-Encoding": "identity"},  # else a server may have a .gz file unpacked on the way
    )
    try:
        get(url, target, None)
    except requests.HTTPError as error:
        raise _MissedError(f"answered {str(error).partition(' for url')[0]}") from None
    except requests.Timeout:
        raise _MissedError("no answer in time", source_is_down=True) from None
    except requests.ConnectionError as error:
        cause = getattr(error.args[0], "reason", error) if error.args else error
        raise _MissedError(f"cannot be reached ({str(cause).rpartition('): ')[2]})", source_is_down=True) from None
    except requests.RequestException as error:
        raise _MissedError(f"broke off ({error})") from None


def _verify(path: Path, file: File) -> None:
    """Hold a file, and its unpacked content, against the checksums."""
    content = path.read_bytes()
    _compare("", content, file.md5)
    if file.md5_unpacked:
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise _MissedError(f"cannot be unpacked ({error})") from None
        _compare("unpacked, ", content, file.md5_unpacked)


def _compare(state: str, content: bytes, expected: str) -> None:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise _MissedError(f"{state}is another file: md5 {found} ({len(content):,} bytes), expected md5 {expected}")
