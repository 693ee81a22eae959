"""The finders behind `learning_rate: auto` and `batch_size: auto`: Lightning's Tuner, bounded."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.tuner.tuning import Tuner

from tenfold.data.datamodule import ImageData
from tenfold.modeling.module import Classifier
from tenfold.params import Train, TuneBatchSize, TuneLearningRate
from tenfold.training.tricks import build_trainer

STEPS_PER_TRIAL = 3
STEPS_PER_EPOCH = 16  # at least: with fewer, a small data set learns too little per epoch
SKIPPED = 10  # first points of a range test, before the smoothed loss has settled
TIMED_STEPS = 10
WORTHWHILE = 1.05  # growth of samples per second below which a larger batch is not worth its cost


@dataclass(frozen=True)
class RangeTest:
    """What the learning-rate finder saw.

    Attributes:
        learning_rates: tried, rising.
        losses: smoothed, one per learning rate.
        suggestion: a peak for the schedule; None when the loss does not fall.
    """

    learning_rates: list[float]
    losses: list[float]
    suggestion: float | None


def suggest(learning_rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Read a learning rate off a range test: halfway, on the log axis, between its two classic readings.

    One is where the loss falls most steeply, which is cautious; the other a tenth of where it is lowest, which is
    bold (both in https://docs.fast.ai/callback.schedule.html). Lightning's own suggestion takes the slope against the
    rate itself instead of its logarithm, so on an exponential range it is always near the lower end, whatever the
    network.

    Returns:
        The rate; None when fewer than 3 points are finite, or the loss nowhere falls, or is lowest before it falls.
    """
    rates, values = np.array(learning_rates[SKIPPED:-1]), np.array(losses[SKIPPED:-1])
    finite = np.isfinite(values)
    rates, values = rates[finite], values[finite]
    if len(values) < 3:
        return None
    slope = np.gradient(values, np.log(rates))
    steepest, lowest = int(slope.argmin()), int(values.argmin())
    if slope[steepest] >= 0 or lowest <= steepest:
        return None
    return math.sqrt(rates[steepest] * rates[lowest] / 10)


def find_learning_rate(train: Train, tune: TuneLearningRate, module: Classifier, data: ImageData) -> RangeTest:
    """Lightning's learning-rate finder: an exponential range test with a smoothed loss.

    The module's weights are afterwards as they were.
    """
    trainer = _trainer(train)
    finder = Tuner(trainer).lr_find(
        module, datamodule=data, min_lr=tune.min, max_lr=tune.max, num_training=tune.steps, update_attr=False
    )
    if finder is None:
        return RangeTest([], [], None)
    rates = [float(rate) for rate in finder.results["lr"]]
    losses = [float(loss) for loss in finder.results["loss"]]
    return RangeTest(rates, losses, suggest(rates, losses))


def find_batch_size(
    train: Train, tune: TuneBatchSize, module: Classifier, data: ImageData
) -> tuple[int, list[dict[str, Any]]]:
    """The batch size by the configured method, at most `tune.max`, and leaving an epoch `STEPS_PER_EPOCH` steps.

    Returns:
        The batch size, and one row per size tried.
    """
    limit = max(1, min(tune.max, len(data.train_set) // STEPS_PER_EPOCH))
    data.batch_size = min(tune.min, limit)
    if tune.method == "throughput":
        return _fastest(train, module, data, limit)
    data.sizes_tried.clear()
    found = Tuner(_trainer(train)).scale_batch_size(
        module,
        datamodule=data,
        mode=tune.method,
        init_val=data.batch_size,
        steps_per_trial=STEPS_PER_TRIAL,
        # Lightning stops before it tries this value. To bisect, the bound itself, or more, has to be tried.
        max_val=limit + 1 if tune.method == "power" else 2 * limit,
        margin=0.0,
    )
    size = found or data.batch_size
    if tune.method == "binsearch":  # what fits more fits the bound
        size = min(size, limit)
    while size > limit:  # Lightning's last doubling, which it has not tried
        size //= 2
    tried = sorted({tried for tried in data.sizes_tried if tried <= limit} | {size})
    return size, [{"batch_size": one, "fits": one <= size} for one in tried]


def _fastest(train: Train, module: Classifier, data: ImageData, limit: int) -> tuple[int, list[dict[str, Any]]]:
    """Double until samples per second stop growing."""
    best, best_rate = data.batch_size, 0.0
    rows: list[dict[str, Any]] = []
    size = data.batch_size
    while size <= limit:
        data.batch_size = size
        clock = _StepClock()
        _trainer(train, max_steps=TIMED_STEPS, callbacks=[clock], limit_val_batches=0).fit(copy.deepcopy(module), data)
        rate = size / clock.median_seconds()
        rows.append({"batch_size": size, "samples_per_s": round(rate, 1)})
        if rate < best_rate * WORTHWHILE:
            break
        best, best_rate = size, rate
        size *= 2
    return best, rows


class _StepClock(Callback):
    """Times steps; the first two, which warm up, are left out."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        self._ends.append(time.perf_counter())

    def median_seconds(self) -> float:
        steps = [end - start for start, end in zip(self._ends[1:], self._ends[2:], strict=False)]
        return statistics.median(steps) if steps else math.inf


def _trainer(train: Train, **flags: Any) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return build_trainer(train, devices=1, max_epochs=-1, **quiet, **flags)
