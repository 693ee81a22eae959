"""The history of a training: one row per epoch, in a DVC out and, on a log, as a line of progress."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint

from tenfold.errors import TenfoldError

COLUMNS = ("epoch", "step", "lr", "train/loss", "train/acc", "val/loss", "val/acc")
POINTS = ("train/loss", "train/acc", "lr", "throughput/samples_per_s")
"""Metrics that are sent to the loggers here, before the epoch's checkpoint: a kill after that then loses no point."""


class History(Checkpoint):
    """Keeps what is reproducible of each epoch: its number (from 0), optimizer steps so far, rate, metrics.

    A `Checkpoint` for Lightning, which calls those last, when all of an epoch is logged, and in the order given: placed
    before a ModelCheckpoint, its rows are part of what that saves, so a resumed training has the whole history.

    Args:
        announce: called with each row when its epoch has ended.
    """

    def __init__(self, announce: Callable[[dict[str, float]], None] = lambda row: None) -> None:
        self.rows: list[dict[str, float]] = []
        self._announce = announce

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add a row."""
        metrics = trainer.callback_metrics
        row = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "lr": float(f"{metrics['lr'].item():.6g}"),
        }
        if not math.isfinite(loss := metrics["train/loss"].item()):
            raise TenfoldError(
                f"the training diverged: train/loss is {loss} in epoch {trainer.current_epoch + 1}. "
                "Lower train.learning_rate, or set train.gradient_clip_val"
            )
        validated = (trainer.current_epoch + 1) % (trainer.check_val_every_n_epoch or 1) == 0
        fresh = [name for name in COLUMNS[3:] if name in metrics and (validated or name.startswith("train/"))]
        row |= {name: round(metrics[name].item(), 6) for name in fresh}
        self.rows.append(row)
        points = {name: metrics[name].item() for name in POINTS if name in metrics}
        for logger in trainer.loggers:
            logger.log_metrics(points | {"epoch": trainer.current_epoch}, step=trainer.global_step - 1)
        if trainer.is_global_zero:
            self._announce(row)

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.rows = state_dict["rows"]

    def write(self, path: Path) -> None:
        """Write the rows as CSV."""
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(self.rows)


def read(path: Path) -> list[dict[str, float]]:
    """The rows that `History.write` wrote.

    Raises:
        TenfoldError: the file is missing, or holds something else.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            rows = [{name: float(value) for name, value in row.items() if value} for row in table]
        if tuple(table.fieldnames or ()) == COLUMNS:
            return rows
        problem = f"has the columns {table.fieldnames}"
    except (OSError, ValueError, TypeError) as error:
        problem = str(error)
    raise TenfoldError(f"{path}: is no history of a training ({problem}). Make it again: dvc repro train")
