"""A Lightning logger that sends curves to a run in the background.

Lightning's own MLflow logger ends runs that it did not begin, falls back to `./mlruns`, and lets the training
wait for the store at every point.
"""

from __future__ import annotations

import threading
import warnings
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytorch_lightning.loggers.logger import Logger

from tenfold.tracking import runs

if TYPE_CHECKING:
    from mlflow.entities import Metric

INTERVAL_S = 1.0
"""Time between two sendings: what the pages of MLflow may be behind."""
LAST_WAIT_S = 30.0
"""How long `close` waits for a store that does not answer."""


class RunLogger(Logger):
    """Sends the points of curves once a second; a store that fails is tried again, and stops no training.

    Args:
        run_id: where they go; empty: nowhere (all but the first of several processes).
    """

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.version = run_id
        self._points: list[Metric] = []
        self._adding, self._sending = threading.Lock(), threading.Lock()
        self._closed = threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._work, name="tenfold-logger", daemon=True)
        if run_id:
            self._thread.start()

    name = runs.TRAINING
    version = ""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep points, to be sent. `epoch`, which Lightning adds to everything, is left out."""
        from mlflow.entities import Metric

        now = runs.now_ms()
        points = [Metric(key, float(value), now, step or 0) for key, value in metrics.items() if key != "epoch"]
        with self._adding:
            self._points += points if self.version else []

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: object, **kwargs: object) -> None:
        """Nothing: `records.record_settings` writes them all."""

    def finalize(self, status: str) -> None:
        """Send what is left. The logger stays open for a further fit or test."""
        self._send()

    def close(self) -> None:
        """Send what is left and end the background thread; warns of points that could not be sent."""
        self._closed.set()
        if self.version:
            self._thread.join(LAST_WAIT_S)
        if self._points:
            warnings.warn(
                f"{len(self._points)} points of curves could not be sent to MLflow. Those that are in "
                "reports/train/history.csv too, `tenfold sync` sends later.",
                stacklevel=2,
            )

    def _work(self) -> None:
        while not self._closed.wait(INTERVAL_S):
            self._send()
        self._send()

    def _send(self) -> None:
        """Send all points, or keep them all: one that did arrive is not doubled by the store."""
        with self._sending:
            with self._adding:
                points = list(self._points)
            try:
                runs.log_points(self.version, points)
            except Exception as error:  # whatever a store or a network can come up with
                if not self._warned:
                    warnings.warn(f"MLflow takes no metrics; they are kept, and sent again: {error}", stacklevel=2)
                self._warned = True
                return
            with self._adding:
                del self._points[: len(points)]
