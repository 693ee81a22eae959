"""The history of a training: one row per epoch, in a DVC out and, on a log, as a line of progress."""

from __future__ import annotations

import csv
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger

COLUMNS = ("epoch", "step", "lr", "train/loss", "train/acc", "val/loss", "val/acc")


class History(Logger):
    """A Lightning logger that keeps what is reproducible: epoch (from 0), optimizer steps so far, rate, metrics.

    Args:
        announce: called with each row when its epoch has ended.
    """

    def __init__(self, announce: Callable[[dict[str, float]], None] = lambda row: None) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []
        self._announce = announce
        self._pending: dict[str, float] = {}

    name = "history"
    version = None

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: settings stand in params.yaml."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Collect; Lightning sends the validation metrics of an epoch first, and those of training at its end."""
        if "epoch" not in metrics:
            return
        self._pending |= metrics
        if "train/loss" in metrics:
            row = {
                "epoch": int(metrics["epoch"]),
                "step": (step or 0) + 1,
                "lr": float(f"{self._pending['lr']:.6g}"),
            }
            row |= {name: round(self._pending[name], 6) for name in COLUMNS[3:] if name in self._pending}
            self.rows.append(row)
            self._announce(row)
            self._pending = {}

    def write(self, path: Path) -> None:
        """Write the rows as CSV."""
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(self.rows)


def read(path: Path) -> list[dict[str, float]]:
    """The rows that `History.write` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
