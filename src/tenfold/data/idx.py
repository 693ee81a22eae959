"""The IDX format of MNIST's files (http://yann.lecun.com/exdb/mnist/): strict reading, plain or gzip.

A file is two zero bytes, a type (8: unsigned bytes), the number of dimensions, each dimension as a big-endian
32-bit number, then the values. Whether it is gzip is said by its name (`.gz`) and must be true.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tenfold.errors import TenfoldError

_UINT8 = 0x08
_GZIP = b"\x1f\x8b"
_KINDS = {1: "labels", 3: "images"}


def read_images(path: Path) -> NDArray[np.uint8]:
    """Grey images, uint8 [N, H, W].

    Raises:
        TenfoldError: the file cannot be read or is not exactly one IDX file of images.
    """
    return _read(path, ndim=3)


def read_labels(path: Path, classes: int) -> NDArray[np.int64]:
    """Labels, int64 [N], each in 0 … `classes` - 1.

    Raises:
        TenfoldError: the file cannot be read or is not exactly one IDX file of labels, or a label is out of
            range.
    """
    labels = _read(path, ndim=1)
    wrong = np.flatnonzero(labels >= classes)
    if wrong.size:
        first = int(wrong[0])
        raise TenfoldError(f"{path}: expected labels 0…{classes - 1}, found {labels[first]} at position {first:,}")
    return labels.astype(np.int64)


def read_pair(images: Path, labels: Path, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images [N, H, W] and their labels [N].

    Raises:
        TenfoldError: as `read_images` and `read_labels`, or there are more of the one than of the other.
    """
    pixels, targets = read_images(images), read_labels(labels, classes)
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


def _unpacked(path: Path) -> bytes:
    """The content of a plain file, or of the one gzip member that a `.gz` file must be."""
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise TenfoldError(f"{path}: cannot be read ({error.strerror})") from None
    if not packed:
        raise TenfoldError(f"{path}: expected an IDX file, found an empty file")
    if path.suffix != ".gz":
        if packed.startswith(_GZIP):
            raise TenfoldError(f"{path}: expected a plain file, as its name does not end in .gz, found a gzip file")
        return packed
    if not packed.startswith(_GZIP):
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


def _describe(content: bytes) -> str:
    """What a file seems to be, by its first bytes."""
    for ndim, kind in _KINDS.items():
        if content[:4] == bytes((0, 0, _UINT8, ndim)):
            return f"IDX {kind}: are images and labels swapped?"
    return f"{len(content):,} bytes that begin with {content[:8]!r}" if content else "nothing"
