"""Train the network, live in MLflow, and keep the best weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pytorch_lightning import Callback, seed_everything
from pytorch_lightning.loggers import Logger

from tenfold import paths
from tenfold.data.summary import Summary
from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.tracking import cards, records, runs
from tenfold.tracking.logger import RunLogger
from tenfold.tracking.provenance import PRECISION
from tenfold.training import outs, resume, tricks
from tenfold.training.averaging import averaging
from tenfold.training.callbacks import EpochSeed, SpeedMonitor
from tenfold.training.factory import build_classifier
from tenfold.training.history import History
from tenfold.training.strategies import together


def run(params: Params) -> None:
    """Write `models/best.ckpt` and `reports/train/`, and fill the MLflow run of this training.

    A training that was interrupted goes on after its last finished epoch, in the same run.
    """
    title = cards.run_name(tuned(params))
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
    params = tuned(params)
    train = params.train
    assert train.learning_rate != "auto"
    assert train.batch_size != "auto"

    seed_everything(params.seed, verbose=False)
    data = tricks.build_data(params, train.batch_size)
    tricks.check_steps(train, data)
    classifier = build_classifier(params, Summary.load(), train.learning_rate, scheduled=True)
    history = History(lambda row: print(_line(row, train.max_epochs), flush=True))
    best, last = tricks.checkpointing(train, folder)
    interrupted, data.first_epoch = resume.newest_checkpoint(folder)
    resuming = [resume.SameEpoch(data.first_epoch), resume.StayStopped()]
    shaping = [EpochSeed(params.seed), *averaging(train), *tricks.stopping(train), *resuming]
    trainer = tricks.build_trainer(
        train,
        logger=logger or False,
        profiler=tricks.profiler(train, folder),
        plugins=[resume.CheckpointFiles()],
        callbacks=[*shaping, SpeedMonitor(), *watchers, history, best, last],
        **tricks.training_flags(train),
    )
    with together(trainer):
        trainer.fit(classifier, datamodule=data, ckpt_path=interrupted)
    if trainer.is_global_zero:
        outs.write(classifier.spec, Path(best.best_model_path), history, params)


def tuned(params: Params) -> Params:
    """The settings with what the tune stage found, or was given, in place of `auto`.

    Raises:
        TenfoldError: its file is missing or damaged.
    """
    try:
        found = json.loads(paths.TUNE_RESULT.read_text(encoding="utf-8"))
        values = {name: entry["value"] for name, entry in found.items()}
        return params.with_tuned(
            values | {"learning_rate": float(values["learning_rate"]), "batch_size": int(values["batch_size"])}
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TenfoldError(
            f"{paths.TUNE_RESULT}: names no learning rate and batch size ({error}). Make it again: dvc repro -f tune"
        ) from None


def _line(row: dict[str, float], epochs: int) -> str:
    values = "  ".join(f"{name} {row[name]:.4f}" for name in list(row)[3:])
    return f"train: epoch {row['epoch'] + 1:.0f}/{epochs}  {values}"
