"""`tune.search`: the settings that are `auto` by Optuna (https://arxiv.org/abs/1907.10902), on validation accuracy.

A study lies in a database, so that one that was interrupted goes on, and several hosts can work on the same. In one
process the same settings give the same trials: each draws from a generator seeded by the number of those before it.
Processes that share a study have other numbers before them, and so draw other settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything

from tenfold import paths, processes
from tenfold.data.summary import Summary
from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.training import identity
from tenfold.training.averaging import ExponentialMovingAverage
from tenfold.training.callbacks import EpochSeed
from tenfold.training.factory import build_classifier
from tenfold.training.finders import STEPS_PER_EPOCH
from tenfold.training.tricks import build_data, build_trainer, check_steps

STUDIES = "sqlite:///{home}/.tenfold/studies.db"
PROCESS = "process"
"""Attribute of a trial: who is at it."""
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
SHAPING = {
    "learning_rate",
    "batch_size",
    "optimizer",
    "schedule",
    "label_smoothing",
    "augment",
    "accelerator",
    "precision",
    "channels_last",
    "deterministic",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "ema_decay",
}
"""Keys of `train` that a trial depends on; raising the number of trials goes on with the same study."""

Told = Callable[[FrozenTrial], None]


def search(params: Params, summary: Summary, tell: Told) -> tuple[dict[str, Any], list[FrozenTrial]]:
    """Try `tune.search.trials` settings, and choose those with the best validation accuracy.

    Args:
        params: all settings; those of `space` that are `auto` are searched for.
        summary: of the split.
        tell: called with each trial of this process when it has ended.

    Returns:
        The settings found, by the names of `space`, and all trials of the study that have ended.

    Raises:
        TenfoldError: the storage cannot be used, or every trial failed.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = _study(params, summary)
    distributions = space(params, summary.counts["train"])
    while len(study.get_trials(deepcopy=False, states=FINISHED)) < params.tune.search.trials:
        trial = study.ask()
        trial.set_user_attr(PROCESS, processes.describe())
        before = [other for other in study.get_trials(deepcopy=False) if other.number < trial.number]
        draw = sum(other.state != TrialState.FAIL for other in before)
        seed = int(np.random.SeedSequence((params.seed, draw)).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=seed)
        try:
            for name, values in distributions.items():
                _draw(trial, name, values)
            ended = study.tell(trial, _accuracy(trial, params, summary))
        except optuna.TrialPruned:
            ended = study.tell(trial, state=TrialState.PRUNED)
        except BaseException:
            study.tell(trial, state=TrialState.FAIL)
            raise
        tell(ended)
    trials = study.get_trials(states=FINISHED)
    if not any(trial.state == TrialState.COMPLETE for trial in trials):
        raise TenfoldError("tune.search: no trial was trained to its end: raise tune.search.trials")
    return study.best_params, trials


def space(params: Params, images: int) -> dict[str, BaseDistribution]:
    """What is searched, and where: each setting that is `auto`, by the name that it has in `tune.json`."""
    train, tune = params.train, params.tune
    found: dict[str, BaseDistribution] = {}
    if train.learning_rate == "auto":
        found["learning_rate"] = FloatDistribution(tune.learning_rate.min, tune.learning_rate.max, log=True)
    if train.batch_size == "auto":
        limit = max(1, min(tune.batch_size.max, images // STEPS_PER_EPOCH))
        sizes = [tune.batch_size.min << power for power in range(16) if tune.batch_size.min << power <= limit]
        found["batch_size"] = CategoricalDistribution(sizes or [limit])
    if train.optimizer.weight_decay == "auto":
        found["weight_decay"] = FloatDistribution(*_bounds(tune.search.weight_decay), log=True)
    if train.augment.strength == "auto":
        found["augment_strength"] = FloatDistribution(*_bounds(tune.search.augment_strength))
    return found


def _draw(trial: optuna.Trial, name: str, values: BaseDistribution) -> None:
    if isinstance(values, FloatDistribution):
        trial.suggest_float(name, values.low, values.high, log=values.log)
    if isinstance(values, CategoricalDistribution):
        trial.suggest_categorical(name, values.choices)


def _bounds(pair: list[float]) -> tuple[float, float]:
    return pair[0], pair[1]


class Pruning(Callback):
    """Reports each validation to the study, and gives up a trial that lags behind the others' median."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report, and ask."""
        self.trial.report(float(trainer.callback_metrics["val/acc"]), trainer.current_epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def _accuracy(trial: optuna.Trial, params: Params, summary: Summary) -> float:
    """Train with a trial's settings, on one device; the validation accuracy at the end."""
    chosen = params.with_tuned(trial.params)
    decay = chosen.train.ema_decay
    short = {
        "max_epochs": params.tune.search.epochs,
        "check_val_every_n_epoch": 1,
        "strategy": "auto",
        "swa": params.train.swa.model_copy(update={"start": None}),
    }
    train = chosen.train.model_copy(update=short)
    chosen = chosen.model_copy(update={"train": train})
    seed_everything(params.seed, verbose=False)
    assert train.batch_size != "auto"
    assert train.learning_rate != "auto"
    data = build_data(chosen, train.batch_size)
    check_steps(train.model_copy(update={"devices": 1, "num_nodes": 1}), data)
    trainer = build_trainer(
        train,
        devices=1,
        max_epochs=train.max_epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[EpochSeed(params.seed), *([ExponentialMovingAverage(decay)] if decay else []), Pruning(trial)],
    )
    trainer.fit(build_classifier(chosen, summary, train.learning_rate, scheduled=True), datamodule=data)
    return float(trainer.callback_metrics["val/acc"])


def _study(params: Params, summary: Summary) -> optuna.Study:
    """The study of these settings, data and code; trials that a process of this host left behind count as failed."""
    shape = {
        "code": identity.code("tune"),
        "seed": params.seed,
        "data": summary.sha256,
        "model": params.model.model_dump(mode="json"),
        "tune": params.tune.model_dump(mode="json", exclude={"search": {"trials", "storage"}}),
        "train": params.train.model_dump(mode="json", include=SHAPING),
    }
    name = f"tenfold-{hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]}"
    url = params.tune.search.storage or STUDIES.format(home=paths.home())
    if not params.tune.search.storage:
        (paths.home() / ".tenfold").mkdir(exist_ok=True)
    try:
        storage = RDBStorage(url)
        pruner = optuna.pruners.MedianPruner() if params.tune.search.prune else optuna.pruners.NopPruner()
        study = optuna.create_study(
            storage=storage, pruner=pruner, study_name=name, direction="maximize", load_if_exists=True
        )
    except Exception as error:  # a database may fail in many ways
        raise TenfoldError(
            f"tune.search.storage: {url}: cannot be used ({type(error).__name__}: {str(error).splitlines()[0]})"
        ) from None
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        if processes.is_gone(trial.user_attrs.get(PROCESS, "")):
            study.tell(trial.number, state=TrialState.FAIL)
    return study
