"""The pictures of an evaluation: what is taken for what, and how far the probabilities can be trusted.

Throughout, `measures` are those of the set called `name`, and `classes` its K class names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axis import Axis, XAxis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from tenfold.report.figures import BLUE, FAINT, GRID, INK, ORANGE, PALE, styled
from tenfold.report.measures import Measures


@styled
def confusion(measures: Measures, classes: Sequence[str], name: str) -> Figure:
    """Counts of actual against predicted classes: right in blue, wrong in red, each on its own scale."""
    counts, k = measures.confusion, len(classes)
    side = float(np.clip(2.5 + 0.5 * k, 6.5, 10))
    figure = Figure(figsize=(side + 0.6, side + 0.6))
    axes = figure.add_subplot()
    right = np.eye(k, dtype=bool)
    recall = counts / np.where(measures.support, measures.support, np.nan)[:, None]
    blues = LinearSegmentedColormap.from_list("right", ["#dbeafe", "#1e40af"])
    reds = LinearSegmentedColormap.from_list("wrong", ["#fff1f2", "#fda4af", "#be123c"])
    axes.imshow(np.where(right, recall, np.nan), cmap=blues, vmin=0, vmax=1)
    wrong = np.where(right | (counts == 0), np.nan, np.log1p(counts))
    worst = max(float(np.log1p(counts[~right]).max(initial=1)), math.log1p(5))
    axes.imshow(wrong, cmap=reds, vmin=0, vmax=worst)
    if k <= 30:
        size = float(np.clip(150 / k, 5.5, 12))
        for (row, column), count in np.ndenumerate(counts):
            if count:
                dark = recall[row, column] > 0.5 if row == column else math.log1p(count) > 0.75 * worst
                color = "white" if dark else INK
                axes.text(column, row, f"{count}", ha="center", va="center", size=size, color=color)
    size = float(np.clip(400 / k, 6, 11))
    _class_ticks(axes.yaxis, classes, size)
    _class_ticks(axes.xaxis, classes, size)
    axes.set(xlabel="predicted", ylabel="actual")
    axes.set_xticks(np.arange(k + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(k + 1) - 0.5, minor=True)
    axes.grid(which="major", visible=False)
    axes.grid(which="minor", color="white" if k > 30 else GRID, linewidth=0.8)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    mistakes = measures.n - int(np.trace(counts))
    axes.set_title(f"Confusion, {name}: {mistakes:,} of {measures.n:,} wrong, accuracy {measures.acc:.2%}")
    return figure


@styled
def per_class(measures: Measures, classes: Sequence[str], name: str) -> Figure:
    """Precision, recall and F1 of each class, the hardest on top; the scale begins where the values do."""
    order = np.lexsort((np.arange(len(classes)), np.nan_to_num(measures.f1, nan=2)))
    rows = np.arange(len(classes))
    figure = Figure(figsize=(9, float(np.clip(1.6 + 0.36 * len(classes), 3.5, 16))))
    axes = figure.add_subplot()
    precision, recall, f1 = measures.precision[order], measures.recall[order], measures.f1[order]
    axes.hlines(rows, np.minimum(precision, recall), np.maximum(precision, recall), color=GRID, linewidth=6)
    axes.scatter(precision, rows, s=42, marker="D", color=ORANGE, label="precision", zorder=3)
    axes.scatter(recall, rows, s=48, color=BLUE, label="recall", zorder=3)
    axes.scatter(f1, rows, s=130, marker="|", color=INK, linewidths=2.2, label="F1", zorder=4)
    span = 1 - np.nanmin([precision, recall], initial=0.99)
    axes.set_xlim(1 - 1.06 * span, 1 + 0.03 * span)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    _class_ticks(axes.yaxis, [classes[i] for i in order], 10)
    axes.set_ylim(len(classes) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    support, missed = measures.support[order], (measures.support - np.diag(measures.confusion))[order]
    for row in rows:
        text = f"{missed[row]:,} of {support[row]:,} missed" if support[row] else "no images"
        axes.annotate(
            text, (1, row), xycoords=("axes fraction", "data"), xytext=(8, 0), textcoords="offset points",
            va="center", size=9, color=FAINT,
        )  # fmt: skip
    axes.set_title(f"Classes, {name}: hardest first")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


@styled
def calibration(measures: Measures, name: str) -> Figure:
    """Accuracy against confidence, with 95 % intervals, and how many predictions have which confidence."""
    bins = measures.bins
    edges = np.linspace(0, 1, len(bins.count) + 1)
    filled = bins.count > 0
    figure = Figure(figsize=(8, 8))
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    top.bar(
        edges[:-1], np.nan_to_num(bins.accuracy), np.diff(edges), align="edge", color=PALE, edgecolor="white",
        label="accuracy",
    )  # fmt: skip
    top.plot([0, 1], [0, 1], color=FAINT, linestyle="--", linewidth=1.2, label="perfectly calibrated")
    spread = np.abs(np.stack([bins.low, bins.high]) - bins.accuracy)[:, filled]
    top.errorbar(
        bins.confidence[filled], bins.accuracy[filled], spread, fmt="o", color=BLUE, markersize=7, capsize=4,
        linewidth=1.5, label="at its mean confidence, 95 % interval",
    )  # fmt: skip
    top.set(ylabel="accuracy", xlim=(0, 1.012), ylim=(0, 1.02))
    top.yaxis.set_major_formatter(PercentFormatter(1))
    top.set_title(f"Calibration, {name}: expected calibration error {measures.ece:.2%}")
    bottom.bar(edges[:-1], bins.count, np.diff(edges), align="edge", color=FAINT, edgecolor="white")
    bottom.set_yscale("log")
    bottom.set_ylim(0.7, 2 * measures.n)
    bottom.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    bottom.set(xlabel="confidence: the probability of the predicted class", ylabel="images")
    bottom.xaxis.set_major_formatter(PercentFormatter(1))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


@styled
def mistakes(measures: Measures, classes: Sequence[str], name: str, images: NDArray[np.uint8], most: int) -> Figure:
    """The wrong answers given with the highest confidence, worst first, as "actual → predicted".

    Args:
        measures, classes, name: see above.
        images: uint8 [N, C, H, W], with C = 1 (grey) or 3 (RGB); memory-mapped, only what is shown is read.
        most: number of pictures; fewer where there are fewer mistakes.
    """
    wrong = np.flatnonzero(measures.predicted != measures.actual)
    worst = wrong[np.argsort(-measures.confidence[wrong], kind="stable")][:most]
    long = any(len(name) > 4 for name in classes)
    columns = int(np.clip(math.ceil(math.sqrt(len(worst))), 5, 10))
    rows = max(1, math.ceil(len(worst) / columns))
    label = (0.36 if long else 0.2) * (columns / 5) ** 0.5  # height of the text, in widths of an image
    cell = images.shape[2] / images.shape[3] + label
    head, width = 0.5, 9.0  # inches
    height = width * rows * cell / columns + head
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("none")
    # One drawing area for the whole grid, much faster than one for each image; a cell is 1 wide.
    axes = figure.add_axes((0.01, 0.0, 0.98, 1 - head / height))
    size = float(np.clip(75 / columns, 6, 11))
    fits = int(630 / columns / (0.58 * size)) - 3  # letters
    for place, index in enumerate(worst):
        row, column = divmod(place, columns)
        top = row * cell + label
        area = (column + 0.03, column + 0.97, (row + 1) * cell - 0.03, top)
        image = np.moveaxis(images[index], 0, -1)
        axes.imshow(image, cmap="gray", vmin=0, vmax=255, extent=area, aspect="auto")
        actual, predicted = (classes[of[index]] for of in (measures.actual, measures.predicted))
        actual = _short(actual, max(fits // 2, fits - len(predicted)))
        predicted = _short(predicted, fits - len(actual))
        text = f"{actual} → {predicted}" + ("\n" if long else "   ") + f"{measures.confidence[index]:.1%}"
        axes.text(column + 0.5, top - 0.03, text, ha="center", va="bottom", size=size)
    axes.axis("off")
    axes.set(xlim=(0, columns), ylim=(rows * cell, 0))
    if len(worst):
        count = f"{len(worst)} of {len(wrong):,}" if len(worst) < len(wrong) else f"all {len(wrong)}"
        axes.set_title(f"Mistakes, {name}: {count}, most confident first (actual → predicted)", pad=6)
    else:
        text = f"No mistakes among the {measures.n:,} images of {name}."
        axes.text(columns / 2, rows * cell / 2, text, ha="center", size=14)
    return figure


def _class_ticks(axis: Axis, classes: Sequence[str], size: float) -> None:
    """Name the classes at 0…K-1; long ones are shortened, many stand upright, of very many not all."""
    step = math.ceil(len(classes) / 60)
    labels = [_short(name, 18) for name in classes][::step]
    upright = isinstance(axis, XAxis) and sum(map(len, labels)) > 70
    axis.set_ticks(np.arange(0, len(classes), step), labels, size=size, rotation=90 if upright else 0)


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
