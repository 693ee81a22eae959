"""The IDX format of MNIST's files (http://yann.lecun.com/exdb/mnist/): strict reading, plain or gzip.

A file is two zero bytes, a type (8: unsigned bytes), the number of dimensions, each dimension as a big-endian
32-bit number, then the values. Whether it is gzip is said by its name (`.gz`) and must be true.
"""

from __future__ import annotations

import gzip
import math
import mmap
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tenfold.errors import TenfoldError

_UINT8 = 0x08
_KINDS = {1: "labels", 3: "images"}


def read_images(path: Path) -> NDArray[np.uint8]:
    """Grey images, uint8 [N, H, W]; mapped from the file if it is a plain one.

    Raises:
        TenfoldError: the file cannot be read or is not exactly one IDX file of images.
    """
    return _read(path, ndim=3)


def read_labels(path: Path, classes: int, first: int = 0) -> NDArray[np.int64]:
    """Labels, int64 [N], each in 0 … `classes` - 1, of a file that counts from `first`.

    Raises:
        TenfoldError: the file cannot be read or is not exactly one IDX file of labels, or a label is out of
            range.
    """
    labels, last = _read(path, ndim=1), first + classes - 1
    wrong = np.flatnonzero((labels < first) | (labels > last))
    if wrong.size:
        place = int(wrong[0])
        raise TenfoldError(f"{path}: expected labels {first}…{last}, found {labels[place]} at position {place:,}")
    return labels.astype(np.int64) - first


def read_pair(images: Path, labels: Path, classes: int, first: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images [N, H, W] and their labels [N], as `read_images` and `read_labels` give them.

    Raises:
        TenfoldError: as `read_images` and `read_labels`, or there are more of the one than of the other.
    """
    pixels, targets = read_images(images), read_labels(labels, classes, first)
    if len(pixels) != len(targets):
        raise TenfoldError(
            f"{labels}: expected {len(pixels):,} labels, one per image of {images}, found {len(targets):,}"
        )
    return pixels, targets


def write(path: Path, values: NDArray[np.uint8]) -> None:
    """Write an array as IDX, gzip if the name ends in `.gz`; the same bytes each time."""
    content = struct.pack(f">HBB{values.ndim}I", 0, _UINT8, values.ndim, *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _read(path: Path, ndim: int) -> NDArray[np.uint8]:
    content = _unpacked(path)
    magic = bytes((0, 0, _UINT8, ndim))
    start = len(magic) + 4 * ndim
    if content[:4] != magic:
        raise TenfoldError(f"{path}: expected IDX {_KINDS[ndim]} (magic {magic.hex()}), found {_describe(content)}")
    if len(content) < start:
        raise TenfoldError(f"{path}: expected a header of {start} bytes, found {len(content)} bytes in all")
    shape = struct.unpack_from(f">{ndim}I", content, len(magic))
    text, expected, found = "×".join(map(str, shape)), math.prod(shape), len(content) - start
    if not expected:
        raise TenfoldError(f"{path}: expected at least one value, found a header of {text}")
    if found != expected:
        excess = f": {found - expected:,} trailing" if found > expected else ": it is cut short"
        raise TenfoldError(f"{path}: expected {expected:,} bytes after the header ({text}), found {found:,}{excess}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _unpacked(path: Path) -> bytes | mmap.mmap:
    """The content of a plain file, mapped, or of the one gzip member that a `.gz` file must be."""
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:  # cannot be mapped
                raise TenfoldError(f"{path}: expected an IDX file, found an empty file")
            packed = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise TenfoldError(f"{path}: cannot be read ({error.strerror})") from None
    is_gzip = packed[:2] == b"\x1f\x8b"
    if path.suffix != ".gz":
        if is_gzip:
            raise TenfoldError(f"{path}: expected a plain file, as its name does not end in .gz, found a gzip file")
        return packed
    if not is_gzip:
        raise TenfoldError(f"{path}: expected a gzip file, as its name ends in .gz, found {_describe(packed)}")
    member = zlib.decompressobj(wbits=31)
    try:
        content = member.decompress(packed)
    except zlib.error as error:
        raise TenfoldError(f"{path}: expected a gzip file, found a damaged one ({error})") from None
    if not member.eof:
        raise TenfoldError(f"{path}: expected a whole gzip file, found one cut short after {len(packed):,} bytes")
    if member.unused_data:
        raise TenfoldError(
            f"{path}: expected one gzip file, found {len(member.unused_data):,} trailing bytes after its end"
        )
    return content


def _describe(content: bytes | mmap.mmap) -> str:
    """What a file seems to be, by its first bytes."""
    for ndim, kind in _KINDS.items():
        if content[:4] == bytes((0, 0, _UINT8, ndim)):
            return f"IDX {kind}: are images and labels swapped?"
    return f"{len(content):,} bytes that begin with {content[:8]!r}" if content else "nothing"
