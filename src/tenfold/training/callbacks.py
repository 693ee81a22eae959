"""Small Lightning callbacks: the seed of each epoch, and how fast it went."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from tenfold.data.datamodule import epoch_seed


class EpochSeed(Callback):
    """Seeds torch, numpy and Python at the start of each epoch, from (seed, epoch, rank).

    What an epoch draws (augmentation, dropout) then depends on nothing that came before, so a training that is
    resumed at an epoch's start equals one that was never stopped.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seed the epoch."""
        seed = epoch_seed(self.seed, trainer.current_epoch, trainer.global_rank)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)


class SpeedMonitor(Callback):
    """Measures `throughput/samples_per_s` of each epoch (training steps only, all ranks), `lr` and `time/fit_s`.

    The time is that of `Trainer.fit`, validation and checkpoints included; of a training that was interrupted, the
    epochs of earlier processes count as far as they were finished.
    """

    def __init__(self) -> None:
        self._earlier = 0.0
        self._started = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"fit_s": self._fit_s()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._earlier = state_dict["fit_s"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start the training's clock: this is the first that `Trainer.fit` calls."""
        self._started = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the training's time."""
        for logger in trainer.loggers:
            logger.log_metrics({"time/fit_s": self._fit_s()}, step=trainer.global_step)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the epoch's clock."""
        self._samples = 0
        self._step = trainer.global_step
        self._seconds = 0.0
        self._last = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count; validation lies between the last batch and the epoch's end, and so stays outside."""
        self._samples += len(batch[1])
        if trainer.is_last_batch and torch.accelerator.is_available():  # what is queued is part of the epoch
            torch.accelerator.synchronize()
        self._seconds = time.perf_counter() - self._last
        stepped = trainer.global_step != self._step  # not so while gradients are accumulated
        self._step = trainer.global_step
        if stepped and trainer.global_step % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            for logger in trainer.loggers:
                logger.log_metrics({"lr": _learning_rate(trainer)}, step=trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the epoch's speed, and the rate that the next step would take."""
        speed = self._samples * trainer.world_size / self._seconds
        pl_module.log_dict({"throughput/samples_per_s": speed, "lr": _learning_rate(trainer)}, logger=False)

    def _fit_s(self) -> float:
        return self._earlier + time.perf_counter() - self._started


def _learning_rate(trainer: Trainer) -> float:
    return float(trainer.optimizers[0].param_groups[0]["lr"])
