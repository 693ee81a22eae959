"""The pictures of tuning and training, and how all pictures of the reports look and are written.

The same input gives the same bytes: matplotlib's own defaults and font whatever the user's configuration,
a fixed resolution, neither date nor version in the file. Class names are shown as they are, not as formulas.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import ArrayLike, NDArray

P = ParamSpec("P")

INK, FAINT, GRID = "#1f2937", "#6b7280", "#e5e7eb"
BLUE, PALE, ORANGE, RED = "#2563eb", "#bfdbfe", "#ea7317", "#c2255c"
STYLE = {
    "figure.dpi": 100,
    "savefig.dpi": 100,
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.parse_math": False,
    "text.color": INK,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "grid.color": GRID,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 2,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in this project's style, and in no other."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)  # type: ignore[arg-type]  # the stubs list every key by name
        yield


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a function that draws, so that it does so in this project's style."""

    @wraps(draw)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style():
            return draw(*args, **kwargs)

    return draw_in_style


def save(figure: Figure, path: Path) -> None:
    """Write `figure` as a PNG of 100 dots per inch, whatever the name's ending."""
    with style(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from font"
        )  # a box stands for it; the tables have the letter
        FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})


@styled
def curves(history: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss, accuracy and learning rate over the epochs; the best validation value of each is marked.

    Args:
        history: one row per epoch: `epoch` (from 0), `lr`, `train/loss`, `train/acc`, `val/loss`, `val/acc`,
            as numbers or their text. A value that is missing, empty or not finite leaves a gap.
    """
    figure = Figure(figsize=(10, 6))
    areas = figure.subplot_mosaic([["loss", "acc"], ["lr", "lr"]], height_ratios=[3, 1])
    epochs = _column(history, "epoch") + 1
    for key, title in (("loss", "Loss"), ("acc", "Accuracy")):
        axes = areas[key]
        for part, color in (("train", ORANGE), ("val", BLUE)):
            values = _column(history, f"{part}/{key}")
            seen = np.isfinite(values)
            axes.plot(epochs[seen], values[seen], color=color, marker="o", markersize=4, label=part)
        if seen.any():
            best = np.nanargmin(values) if key == "loss" else np.nanargmax(values)
            shown = f"{values[best]:.4f}" if key == "loss" else f"{values[best]:.2%}"
            axes.scatter(
                epochs[best],
                values[best],
                s=120,
                color="none",
                edgecolor=BLUE,
                label=f"best val: {shown}",
                clip_on=False,
            )
        axes.set_title(title)
        axes.legend()
    areas["acc"].yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    areas["loss"].set_ylim(bottom=0)
    areas["lr"].plot(epochs, _column(history, "lr"), color=FAINT, marker="o", markersize=4)
    areas["lr"].set(ylabel="learning rate", xlabel="epoch")
    areas["lr"].set_ylim(bottom=0)
    for axes in areas.values():
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlim(0.5, len(history) + 0.5)
    return figure


@styled
def learning_rate_search(
    rates: ArrayLike, losses: ArrayLike, suggestion: float | None, raw: ArrayLike | None = None
) -> Figure:
    """The loss over the learning rates of a range test, with the suggestion marked.

    Args:
        rates: learning rates tried [S].
        losses: smoothed loss at each [S]; points that are not finite are left out.
        suggestion: the rate found; None: the curve gave none.
        raw: the loss as it was measured [S].
    """
    x, y = np.asarray(rates, dtype=float), np.asarray(losses, dtype=float)
    figure = Figure(figsize=(9, 5))
    axes = figure.add_subplot(xscale="log", xlabel="learning rate", ylabel="loss")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if raw is not None:
        axes.plot(x, np.asarray(raw, dtype=float), color=PALE, linewidth=1.2, label="measured")
    axes.plot(x, y, color=BLUE, label="smoothed")
    finite = y[np.isfinite(y)]
    if len(finite):
        low, start = float(finite.min()), float(finite[: max(1, len(finite) // 10)].max())
        margin = 0.15 * max(start - low, 1e-6)
        axes.set_ylim(low - margin, start + 2 * margin)  # what rises above the start has diverged
    if suggestion is None:
        axes.set_title("Learning rate: the curve gives no suggestion")
    else:
        axes.axvline(suggestion, color=RED, linestyle="--", linewidth=1.2)
        at = float(np.interp(math.log(suggestion), np.log(x[np.isfinite(y)]), finite)) if len(finite) else 0.0
        axes.plot(suggestion, at, marker="o", markersize=10, color=RED, linestyle="none", label="suggestion")
        axes.set_title(f"Learning rate: {suggestion:.3g} suggested")
    axes.legend()
    return figure


def _column(history: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    cells = [row.get(key) for row in history]
    return np.array([math.nan if cell in (None, "") else float(cell) for cell in cells])


@styled
def comparison(title: str, seconds: Mapping[str, list[float]], accuracies: Mapping[str, list[float]]) -> Figure:
    """Seconds of a fit and test accuracy of each row, one dot per training and a bar at their mean."""
    names = list(accuracies)
    figure = Figure(figsize=(11, 1.2 + 0.32 * len(names)))
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, values, label in ((left, seconds, "seconds of a fit"), (right, accuracies, "test accuracy")):
        for place, name in enumerate(names):
            axes.plot(values[name], [place] * len(values[name]), "o", color=PALE, markersize=5)
            axes.plot([np.mean(values[name])] * 2, [place - 0.3, place + 0.3], color=BLUE)
        axes.set_xlabel(label)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    right.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=1))
    return figure
