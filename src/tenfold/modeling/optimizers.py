"""Optimizers and learning-rate schedules, by the names in `params.yaml`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    CyclicLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
)
from torch.optim.swa_utils import SWALR

from tenfold import params as settings


def build_optimizer(
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    chosen: settings.Optimizer,
    fused: bool = True,
    is_weight: Sequence[bool] | None = None,
) -> Optimizer:
    """The optimizer named in `train.optimizer`; weights of layers decay, biases and BatchNorm's vectors do not.

    Args:
        parameters: of the network.
        learning_rate: to begin with.
        chosen: the settings.
        fused: the whole step in one kernel, which is faster; Lightning cannot clip gradients of such under mixed
            precision.
        is_weight: of each parameter, whether it decays; None: those that are no vectors.
    """
    everything = list(parameters)
    decays = zip(everything, is_weight or (parameter.ndim > 1 for parameter in everything), strict=True)
    weights: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for parameter, with_decay in decays:
        weights[0 if with_decay else 1]["params"].append(parameter)
    assert chosen.weight_decay != "auto"
    decay = chosen.weight_decay
    betas = (chosen.betas[0], chosen.betas[1])
    match chosen.name:
        case "adam":
            return Adam(weights, learning_rate, betas=betas, weight_decay=decay, fused=fused)
        case "adamw":
            return AdamW(weights, learning_rate, betas=betas, weight_decay=decay, fused=fused)
        case "rmsprop":
            return RMSprop(weights, learning_rate, momentum=chosen.momentum, weight_decay=decay)
        case "sgd":
            nesterov = chosen.momentum > 0
            return SGD(weights, learning_rate, chosen.momentum, weight_decay=decay, nesterov=nesterov, fused=fused)


def build_schedule(
    optimizer: Optimizer, learning_rate: float, train: settings.Train, steps_per_epoch: int
) -> LRScheduler:
    """The schedule of `train.schedule`, counted in optimizer steps; `learning_rate` is its highest value.

    With `train.swa.learning_rate`, SWA's own schedule takes its place from the first averaged epoch on.
    """
    first, final = train.first_averaged_epoch, train.swa.learning_rate
    if first is None or final is None:
        return _base_schedule(optimizer, learning_rate, train.schedule, steps_per_epoch, train.max_epochs)
    if first == 0:
        return SWALR(optimizer, final, train.swa.anneal_epochs * steps_per_epoch)
    before = _base_schedule(optimizer, learning_rate, train.schedule, steps_per_epoch, first)
    during = SWALR(optimizer, final, train.swa.anneal_epochs * steps_per_epoch)
    return SequentialLR(optimizer, [before, during], milestones=[first * steps_per_epoch])


def _base_schedule(
    optimizer: Optimizer, learning_rate: float, chosen: settings.Schedule, steps_per_epoch: int, epochs: int
) -> LRScheduler:
    steps = steps_per_epoch * epochs
    match chosen.name:
        case "constant":
            return ConstantLR(optimizer, factor=1.0)
        case "cosine":
            return CosineAnnealingLR(optimizer, T_max=steps)
        case "one_cycle":
            return OneCycleLR(
                optimizer, learning_rate, total_steps=steps, pct_start=chosen.warmup, cycle_momentum=False
            )
        case "cyclic":
            return CyclicLR(
                optimizer,
                base_lr=chosen.cycle_floor * learning_rate,
                max_lr=learning_rate,
                step_size_up=max(1, round(chosen.cycle_epochs * steps_per_epoch)),
                cycle_momentum=False,
            )
