"""Averages of the weights along a training, by SWA or EMA: they are what is validated, kept and exported."""

from __future__ import annotations

import math
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import WeightAveraging
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import get_ema_multi_avg_fn, update_bn

from tenfold.modeling.module import Classifier
from tenfold.params import Train


def averaging(train: Train) -> list[Callback]:
    """The averaging that `train.swa` or `train.ema_decay` asks for, if any."""
    if (first := train.first_averaged_epoch) is not None:
        return [StochasticWeightAveraging(first)]
    return [ExponentialMovingAverage(train.ema_decay)] if train.ema_decay else []


class AveragedWeights(WeightAveraging):
    """Lightning's averaging, with three promises.

    Nothing changes before there is an average. The average takes the place of the weights in each validation and in
    checkpoints, so a checkpoint's metrics are its own. And BatchNorm's statistics are measured anew before each
    validation, since those that training keeps belong to other weights (Izmailov et al. 2018,
    https://arxiv.org/abs/1803.05407, section 3.2).
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(use_buffers=False, **arguments)

    @property
    def has_begun(self) -> bool:
        """Whether there is an average."""
        return self._average_model is not None and int(self._average_model.n_averaged) > 0

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the average in place."""
        if self.has_begun:
            super().on_validation_epoch_start(trainer, pl_module)
            if trainer.state.fn == TrainerFn.FITTING:
                refresh_batch_norm(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the weights in training back."""
        if self.has_begun:
            super().on_validation_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the average in place."""
        if self.has_begun:
            super().on_train_end(trainer, pl_module)


class StochasticWeightAveraging(AveragedWeights):
    """The plain mean of the weights at the ends of epochs (SWA), taken before the epoch is validated.

    Args:
        first: epoch, from 0, at whose end the mean begins.
    """

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        self._steps_per_epoch = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the steps of an epoch; one that accumulation leaves unfinished at its end is taken too."""
        self._steps_per_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether this step is the last of an epoch that counts."""
        if step_idx is None:
            return False
        epoch, rest = divmod(step_idx + 1, self._steps_per_epoch)
        return not rest and epoch > self.first


class ExponentialMovingAverage(AveragedWeights):
    """A mean over all steps in which each step back counts less by the same factor (EMA).

    Args:
        decay: that factor.
    """

    def __init__(self, decay: float) -> None:
        update = get_ema_multi_avg_fn(decay)

        def average(averaged: list[Tensor], weights: list[Tensor], count: Any) -> None:  # kept in float32, if need be
            update(averaged, [new.to(kept.dtype) for kept, new in zip(averaged, weights, strict=True)], count)

        super().__init__(multi_avg_fn=average)


def refresh_batch_norm(trainer: Trainer, module: LightningModule) -> None:
    """Measure BatchNorm's statistics over an epoch of augmented training batches, and over all ranks."""
    assert isinstance(module, Classifier)
    norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    if not norms:
        return
    loader = trainer.datamodule.train_dataloader()  # type: ignore[attr-defined]
    loader.sampler.set_epoch(trainer.current_epoch)
    with trainer.precision_plugin.forward_context():
        update_bn((module.augment(images.to(module.device)) for images, _ in loader), module.network)
    for norm in norms:
        for statistic in (norm.running_mean, norm.running_var):
            if statistic is not None:
                statistic.copy_(trainer.strategy.reduce(statistic, reduce_op="mean"))
