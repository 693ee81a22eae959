"""Train the network, live in MLflow, and keep the best weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, Trainer, seed_everything
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.model_summary.model_summary import ModelSummary

from tenfold import paths
from tenfold.data.summary import Summary
from tenfold.errors import TenfoldError
from tenfold.modeling import checkpoint
from tenfold.modeling.module import Classifier
from tenfold.modeling.predictor import Predictor
from tenfold.params import Params
from tenfold.tracking import records, runs
from tenfold.tracking.logger import RunLogger
from tenfold.tracking.provenance import PRECISION
from tenfold.training import resume, tricks
from tenfold.training.callbacks import EpochSeed, SpeedMonitor
from tenfold.training.factory import build_classifier
from tenfold.training.history import History


def run(params: Params) -> None:
    """Write `models/best.ckpt` and `reports/train/`, and fill the MLflow run of this training.

    A training that was interrupted goes on after its last finished epoch, in the same run.
    """
    title = f"{params.data.dataset} {params.model.network} {params.train.max_epochs} epochs"
    tags = {PRECISION: tricks.effective_precision(params.train)}
    with resume.resume_folder(params) as folder, runs.open_run("tenfold", title, folder=folder, tags=tags) as tracked:
        records.record_inputs(tracked, Path(), params)
        fit(params, folder, RunLogger(tracked))
        records.record_kept(tracked, folder)
        records.record_training(tracked, Path(), params)


def fit(params: Params, folder: Path, logger: Logger | None = None, watchers: Sequence[Callback] = ()) -> None:
    """Train, from the newest checkpoint in `folder` if there is one, and write the outs.

    Args:
        params: all settings.
        folder: for checkpoints.
        logger: gets the curves.
        watchers: callbacks that look on, and shape nothing.
    """
    train = params.train
    learning_rate, batch_size = _tuned()

    seed_everything(params.seed, verbose=False)
    data = tricks.build_data(params, batch_size)
    tricks.check_steps(train, data)
    classifier = build_classifier(params, Summary.load(), learning_rate, train.schedule)
    history = History(lambda row: print(_line(row, train.max_epochs), flush=True))
    best, last = tricks.checkpointing(train, folder)
    watching = [EpochSeed(params.seed), SpeedMonitor(), *tricks.stopping(train), resume.StayStopped(), *watchers]
    trainer = tricks.build_trainer(
        train,
        logger=logger or False,
        profiler=tricks.profiler(train, folder),
        plugins=[resume.CheckpointFiles()],
        callbacks=[*watching, history, best, last],
        **tricks.training_flags(train),
    )
    interrupted, data.first_epoch = resume.newest_checkpoint(folder)
    trainer.fit(classifier, datamodule=data, ckpt_path=interrupted)
    if trainer.is_global_zero:
        write_outs(classifier, trainer, history, best.best_model_path, _settings(params, learning_rate, batch_size))


def _tuned() -> tuple[float, int]:
    try:
        tuned = json.loads(paths.TUNE_RESULT.read_text(encoding="utf-8"))
        return float(tuned["learning_rate"]["value"]), int(tuned["batch_size"]["value"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TenfoldError(
            f"{paths.TUNE_RESULT}: names no learning rate and batch size ({error}). Make it again: dvc repro -f tune"
        ) from None


def write_outs(classifier: Classifier, trainer: Trainer, history: History, best: str, training: dict[str, Any]) -> None:
    """Write the best weights, the history and the summary of the network."""
    summary = str(ModelSummary(Predictor(classifier.network, classifier.spec), max_depth=-1))
    classifier.load_state_dict(torch.load(best, weights_only=True)["state_dict"])
    with paths.writing(paths.BEST_CHECKPOINT) as file:
        checkpoint.save(file, classifier.network, classifier.spec, training)
    with paths.writing(paths.TRAIN_REPORT) as folder:
        folder.mkdir()
        history.write(folder / paths.HISTORY.name)
        (folder / "network.txt").write_text(summary + "\n", encoding="utf-8")


def _settings(params: Params, learning_rate: float, batch_size: int) -> dict[str, Any]:
    """What shaped the weights, for whoever finds the file alone."""
    return {
        "seed": params.seed,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "precision": tricks.effective_precision(params.train),
    } | params.train.model_dump(
        mode="json", include={"max_epochs", "optimizer", "schedule", "label_smoothing", "augment"}
    )


def _line(row: dict[str, float], epochs: int) -> str:
    values = "  ".join(f"{name} {row[name]:.4f}" for name in list(row)[3:])
    return f"train: epoch {row['epoch'] + 1:.0f}/{epochs}  {values}"
