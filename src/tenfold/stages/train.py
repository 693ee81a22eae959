"""Train the network, live in MLflow, and keep the best weights."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer, seed_everything
from pytorch_lightning.utilities.model_summary.model_summary import ModelSummary

from tenfold import paths
from tenfold.data.summary import Summary
from tenfold.modeling import checkpoint
from tenfold.modeling.module import Classifier
from tenfold.modeling.predictor import Predictor
from tenfold.params import Params
from tenfold.tracking import records, runs
from tenfold.tracking.logger import RunLogger
from tenfold.tracking.provenance import PRECISION
from tenfold.training import tricks
from tenfold.training.callbacks import EpochSeed, SpeedMonitor
from tenfold.training.factory import build_classifier
from tenfold.training.history import History


def run(params: Params) -> None:
    """Write `models/best.ckpt` and `reports/train/`, and fill the MLflow run of this training."""
    train = params.train
    tuned = json.loads(paths.TUNE_RESULT.read_text(encoding="utf-8"))
    learning_rate, batch_size = tuned["learning_rate"]["value"], tuned["batch_size"]["value"]

    seed_everything(params.seed, verbose=False)
    data = tricks.build_data(train, batch_size, params.seed)
    summary = Summary.load()
    classifier = build_classifier(params, summary, learning_rate, train.schedule)

    title = f"{summary.dataset} {params.model.network} {train.max_epochs} epochs"
    tags = {PRECISION: tricks.effective_precision(train)}
    with runs.open_run("tenfold", title, tags=tags) as tracked, tempfile.TemporaryDirectory() as scratch:
        records.record_inputs(tracked, Path(), params)
        history = History(lambda row: print(_line(row, train.max_epochs), flush=True))
        logger = RunLogger(tracked)
        keeper = tricks.checkpointing(train, Path(scratch))
        trainer = tricks.build_trainer(
            train,
            logger=[history, logger],
            callbacks=[EpochSeed(params.seed), SpeedMonitor(), keeper, *tricks.stopping(train)],
            **tricks.training_flags(train),
        )
        started = time.perf_counter()
        trainer.fit(classifier, datamodule=data)
        logger.log_metrics({"time/fit_s": time.perf_counter() - started}, step=trainer.global_step)

        write_outs(classifier, trainer, history, keeper.best_model_path, _settings(params, learning_rate, batch_size))
        records.record_training(tracked, Path(), params)


def write_outs(classifier: Classifier, trainer: Trainer, history: History, best: str, training: dict[str, Any]) -> None:
    """Write the best weights, the history, its picture and the summary of the network."""
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
