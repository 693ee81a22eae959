"""A Lightning logger that sends curves to a run by its journal.

Lightning's own MLflow logger ends runs that it did not begin, falls back to `./mlruns`, and lets the training
wait for the store at every point.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from pytorch_lightning.loggers.logger import Logger

from tenfold.tracking import runs


class RunLogger(Logger):
    """Writes the points of curves to the journal of a run; without one (on all but the first process), nowhere."""

    def __init__(self, run: runs.Run) -> None:
        super().__init__()
        self.version = run.id
        self._journal = run.journal
        self._epoch = 0.0

    name = runs.TRAINING
    version = ""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep points, to be sent. `epoch`, which Lightning adds to everything, is left out."""
        points = dict(metrics)
        epoch = points.pop("epoch", self._epoch)
        if self._journal:
            self._journal.add_metrics(points, step or 0, epoch_ended=epoch > self._epoch)
        self._epoch = epoch

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: object, **kwargs: object) -> None:
        """Nothing: `records.record_inputs` writes them all."""
