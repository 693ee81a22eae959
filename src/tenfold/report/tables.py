"""The tables of an evaluation: as files, and on the terminal."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from tenfold.report.measures import PER_CLASS, Measures


def write_per_class(path: Path, measured: Mapping[str, Measures], classes: Sequence[str]) -> None:
    """Write one row per set and class as CSV; an empty cell: nothing to measure (see `Measures`)."""
    rows = (
        (name, label, *row.values())
        for name, measures in measured.items()
        for label, row in zip(classes, measures.per_class(), strict=True)
    )
    _write(path, ("set", "class", *PER_CLASS, "support"), rows)


def write_predictions(
    path: Path, measures: Measures, classes: Sequence[str], files: Sequence[str] | None = None
) -> None:
    """Write one row per image as CSV: its place in the set, or its file, actual and predicted class, probabilities."""
    names = np.array(classes, dtype=object)
    rows = zip(
        files or range(measures.n),
        names[measures.actual],
        names[measures.predicted],
        *np.char.mod("%.6f", np.column_stack([measures.confidence, measures.probabilities])).T,
        strict=True,
    )
    _write(
        path,
        ("file" if files else "index", "actual", "predicted", "probability", *(f"p_{name}" for name in classes)),
        rows,
    )


def write_confusion(path: Path, measures: Measures, classes: Sequence[str]) -> None:
    """Write actual and predicted class of each image as CSV.

    DVC copies every column of a plotted file into its page: with the probabilities, that would be megabytes.
    """
    names = np.array(classes, dtype=object)
    rows = zip(names[measures.actual], names[measures.predicted], strict=True)
    _write(path, ("actual", "predicted"), rows)


def results(measured: Mapping[str, Measures]) -> Table:
    """The single numbers of each set, for a terminal."""
    table = Table("set", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("images", "loss", "accuracy", "95 % interval", "ECE", "F1", "AUROC"):
        table.add_column(heading, justify="right")
    for name, measures in measured.items():
        row = measures.summary()
        table.add_row(
            name,
            f"{measures.n:,}",
            f"{measures.loss:.4f}",
            f"{measures.acc:.2%}",
            f"{measures.acc_low * 100:.2f}–{measures.acc_high:.2%}",
            f"{measures.ece:.4f}",
            *("–" if row[key] is None else f"{row[key]:.4f}" for key in ("f1", "auroc")),
        )
    return table


def _write(path: Path, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
