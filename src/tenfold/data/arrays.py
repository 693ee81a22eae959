"""Images as arrays: what every source gives and the split is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Images(NamedTuple):
    """Images and their labels; the images may be mapped from a file, so that only what is touched is read."""

    images: NDArray[np.uint8]
    """[N, C, H, W]."""
    labels: NDArray[np.int64]
    """[N]."""
    files: Sequence[str] | None = None
    """[N], where each image comes from a file of its own."""


class Raw(NamedTuple):
    """A data set as it was downloaded or imported, before it is split."""

    classes: tuple[str, ...]
    """Names, in the order of the labels."""
    pool: Images
    """What train and val, and test if there is no official one, are chosen from."""
    test: Images | None
    """The official test set, if there is one."""
    skipped: Mapping[str, str] = MappingProxyType({})
    """Files that were left out, and why."""
