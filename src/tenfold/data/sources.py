"""Named data sets: where their files come from, how they are verified, and how they are read.

Every file is held against its checksums, wherever it came from, and lies unpacked in `data/raw`.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterable
from functools import partial
from io import BufferedIOBase
from pathlib import Path, PurePosixPath

import numpy as np

from tenfold import paths
from tenfold.data import fetch, idx
from tenfold.data.arrays import Images, Raw
from tenfold.data.fetch import MissError
from tenfold.datasets import DATASETS, Dataset, File
from tenfold.errors import TenfoldError

MIRROR_VARIABLE = "TENFOLD_DATA_MIRROR"
_DAMAGED = (zlib.error, EOFError, gzip.BadGzipFile)


def obtain(name: str, folder: Path) -> None:
    """Put the verified files of a data set, unpacked, into an existing folder.

    Tried in turn: `data/raw`; `.tenfold/downloads/`, where downloaded files stay as they came; `../shared/data/<name>`
    beside the main checkout; `TENFOLD_DATA_MIRROR` (a URL or a folder that has the files, or a folder `<name>` with
    them); the built-in mirrors.

    Raises:
        TenfoldError: a file could be had nowhere; the message lists what was tried, and why it failed.
    """
    dataset = DATASETS[name]
    if not dataset.mirrors:
        _make_digits(folder, dataset)
        return
    store = name.partition("-")[0] if dataset.archive else name  # the splits of EMNIST share their archive
    downloads = paths.home() / ".tenfold/downloads" / store
    missing, tried = [dataset.archive] if dataset.archive else list(dataset.files), list[str]()
    for source in (paths.RAW, downloads, *_given(dict.fromkeys((name, store))), *dataset.mirrors):
        for file in tuple(missing):
            path = downloads / file.name if isinstance(source, str) else _find(source, file)
            place = _join(source, file.name) if isinstance(source, str) else str(path)
            if source in (paths.RAW, downloads) and not path.is_file():
                continue
            use = partial(_use, file=file, dataset=dataset, folder=folder)
            try:
                if isinstance(source, str):
                    fetch.download(place, path, use)
                else:
                    use(path)
            except MissError as miss:
                tried.append(fetch.hide_password(f"{source if miss.source_is_down else place}: {miss}"))
                print(f"{name}: {tried[-1]}", flush=True)
                if miss.source_is_down:
                    break
            else:
                missing.remove(file)
                line = f"{name}: {path.name}, {path.stat().st_size:,} bytes, from {source}"
                print(fetch.hide_password(line), flush=True)
    if missing:
        raise TenfoldError(
            f"data.dataset: {name}: cannot get {', '.join(file.name for file in missing)}. Tried:\n  "
            + "\n  ".join(tried)
            + f"\nConnect to the network, or set {MIRROR_VARIABLE} to a URL or a folder that has the files, "
            "or choose the data set that needs no network: `data.dataset: digits` in params.yaml."
        )


def read(name: str, folder: Path) -> Raw:
    """A data set from its files as `obtain` leaves them; the images are mapped from them.

    Raises:
        TenfoldError: a file is missing, or is not what it should be.
    """
    dataset = DATASETS[name]
    try:
        pool = _read(folder, dataset.train, dataset)
        test = _read(folder, dataset.test, dataset) if dataset.test else None
    except TenfoldError as error:
        raise TenfoldError(f"{error}. To get the files of {name} anew: tenfold download") from None
    if test and test.images.shape[1:] != pool.images.shape[1:]:
        expected, found = pool.images.shape[1:], test.images.shape[1:]
        raise TenfoldError(f"{name}: expected test images of shape {expected}, as in train, found {found}")
    return Raw(dataset.classes, pool, test)


def _read(folder: Path, files: tuple[File, File], dataset: Dataset) -> Images:
    images, labels = (folder / file.kept for file in files)
    pixels, targets = idx.read_pair(images, labels, len(dataset.classes), dataset.first_label)
    return Images((pixels.swapaxes(1, 2) if dataset.transposed else pixels)[:, None], targets)


def _given(places: Iterable[str]) -> list[Path | str]:
    """Folders and URLs beside the project's own, in the order in which they are tried."""
    home = paths.home()
    found: list[Path | str] = [home.parent / "shared/data" / place for place in places]
    if mirror := os.environ.get(MIRROR_VARIABLE):
        if mirror.startswith(("http://", "https://")):
            found += [mirror, *(_join(mirror, place) for place in places)]
        elif "://" in mirror:
            shown = fetch.hide_password(mirror)
            raise TenfoldError(
                f"{MIRROR_VARIABLE}: expected a URL with http:// or https://, or a folder, found {shown!r}"
            )
        else:
            root = home / Path(mirror).expanduser()  # a relative one hangs on the main checkout
            found += [root, *(root / place for place in places)]
    return found


def _join(url: str, name: str) -> str:
    return f"{url.rstrip('/')}/{name}"


def _find(folder: Path, file: File) -> Path:
    """Where a folder has a file, if it has it: packed, or unpacked if that can be verified."""
    unpacked = folder / file.kept
    return unpacked if file.md5_unpacked and unpacked.is_file() else folder / file.name


def _use(path: Path, file: File, dataset: Dataset, folder: Path) -> None:
    """Verify a file, or an archive, and unpack it into a folder."""
    try:
        if file == dataset.archive:
            _extract(path, file, dataset.files, folder)
        else:
            _unpack(path, file, folder / file.kept)
    except FileNotFoundError:
        gone = not path.parent.is_dir()
        raise MissError("no such folder" if gone else "no such file", source_is_down=gone) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TenfoldError(f"{folder}: cannot be written ({error.strerror})") from None
        raise MissError(f"cannot be read or unpacked ({error})") from None


def _unpack(path: Path, file: File, target: Path) -> None:
    """Verify a file and write its content.

    Where the checksum of the content is known, only that counts: the file may be packed otherwise, as Debian's are.
    """
    content = None
    if file.md5_unpacked or _md5(path) == file.md5:
        with path.open("rb") as stream, contextlib.suppress(*_DAMAGED):
            packed = stream.peek(2).startswith(b"\x1f\x8b")
            content = _copy(gzip.GzipFile(fileobj=stream) if packed else stream, target)
    if content is None or content != (file.md5_unpacked or content):
        raise _other(path, file)


def _extract(path: Path, archive: File, files: Iterable[File], folder: Path) -> None:
    """Verify a zip archive and write the content of the packed files in it, whatever folder of it they lie in."""
    if _md5(path) != archive.md5:
        raise _other(path, archive)
    try:
        with zipfile.ZipFile(path) as zipped:
            members = {PurePosixPath(member).name: member for member in zipped.namelist()}
            for file in files:
                if file.name not in members:
                    raise MissError(f"does not hold {file.name}")
                with zipped.open(members[file.name]) as packed:
                    _copy(gzip.GzipFile(fileobj=packed), folder / file.kept)
    except (*_DAMAGED, zipfile.BadZipFile, RuntimeError) as error:
        raise MissError(f"cannot be unpacked ({error})") from None


def _copy(stream: BufferedIOBase, target: Path) -> str:
    """Write a stream to a file, and give its MD5."""
    digest = hashlib.md5(usedforsecurity=False)
    with target.open("wb") as file:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
            file.write(chunk)
            if file.tell() > fetch.MAX_BYTES:
                raise MissError(f"unpacks to more than {fetch.MAX_BYTES:,} bytes")
    return digest.hexdigest()


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def _other(path: Path, file: File) -> MissError:
    with path.open("rb") as stream:
        if fetch.is_web_page(stream.read(100)):
            return MissError("is a web page")
    unpacked = f", or {file.md5_unpacked} unpacked" if file.md5_unpacked else ""
    return MissError(
        f"is another file: md5 {_md5(path)} ({path.stat().st_size:,} bytes), expected md5 {file.md5}{unpacked}"
    )


def _make_digits(folder: Path, dataset: Dataset) -> None:
    """The 1,797 digits of scikit-learn (8×8, grey values 0…16), brought to 28×28 and 0…255.

    Bilinear, in whole numbers: the same bytes on every machine.
    """
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    centers = (4 * np.arange(28) - 5).clip(0, 98)  # of the 28 pixels, in fourteenths of one of the 8
    weights = (14 - abs(centers[:, None] - 14 * np.arange(8))).clip(0)
    large = weights @ small.astype(np.int64).reshape(-1, 8, 8) @ weights.T
    pixels = (large * 255 + 1568) // (14 * 14 * 16)
    for file, values in zip(dataset.files, (pixels, labels), strict=True):
        path = folder / file.name
        idx.write(path, values.astype(np.uint8))
        if _md5(path) != file.md5:
            raise TenfoldError(f"data.dataset: digits: {file.name} as made here {_other(path, file)}")
        print(f"digits: {file.name}, {path.stat().st_size:,} bytes, made here", flush=True)
