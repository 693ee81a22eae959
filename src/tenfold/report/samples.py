"""A picture of what a data set holds: some images of each class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tenfold.report.figures import styled

MOST_CLASSES = 60
GAP = 0.06  # between images, in widths of one


@styled
def samples(
    images: NDArray[np.uint8], labels: NDArray[np.int64], classes: Sequence[str], name: str, columns: int = 12
) -> Figure:
    """Images of each class, a row for each, evenly from first to last.

    Args:
        images: uint8 [N, C, H, W], with C = 1 (grey) or 3 (RGB); memory-mapped, only what is shown is read.
        labels: [N].
        classes: names, in the order of the labels. Of more than 60, the first are shown.
        name: of the set, for the title.
        columns: images of each class.
    """
    _, channels, height, width = images.shape
    shown = classes[:MOST_CLASSES]
    gap = max(1, round(GAP * width))
    sheet = np.full((len(shown) * (height + gap), columns * (width + gap), channels), 255, np.uint8)
    for row in range(len(shown)):
        members = np.flatnonzero(labels == row)
        for column, at in enumerate(np.linspace(0, len(members) - 1, min(columns, len(members))).astype(int)):
            top, left = row * (height + gap), column * (width + gap)
            sheet[top : top + height, left : left + width] = np.moveaxis(images[members[at]], 0, -1)
    figure = Figure(figsize=(9, 1 + 7 * sheet.shape[0] / sheet.shape[1]))
    axes = figure.add_subplot()
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    counts = np.bincount(labels, minlength=len(classes))
    names = [f"{name[:24]}{'…' * (len(name) > 24)}  {count:,}" for name, count in zip(shown, counts, strict=False)]
    axes.set_yticks((np.arange(len(shown)) + 0.5) * (height + gap) - gap / 2, names, size=max(4, 11 - len(shown) / 8))
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    more = f" (the first {len(shown)} classes of {len(classes)})" if len(classes) > len(shown) else ""
    axes.set_title(f"Samples of each class, {name}: {len(labels):,} images{more}")
    return figure
