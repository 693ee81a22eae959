"""Measure the best checkpoint on train, val and test, and draw what it gets wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Trainer
from rich.console import Console
from torch.utils.data import DataLoader

from tenfold import paths
from tenfold.data.datamodule import Batch, eval_loader
from tenfold.data.summary import FILES, PARTS, Summary
from tenfold.errors import TenfoldError
from tenfold.modeling.networks import NetworkSpec
from tenfold.modeling.predictor import Predictor
from tenfold.params import Params
from tenfold.report import evaluation, figures, tables
from tenfold.report.measures import Measures, measure
from tenfold.report.samples import samples
from tenfold.tracking import records, sync
from tenfold.training import history
from tenfold.training.quiet import predicting_trainer


def run(params: Params) -> None:
    """Write `reports/metrics.json` and `reports/evaluate/`, and add them to the model's MLflow run.

    Raises:
        TenfoldError: the checkpoint does not fit the data, or its logits are not finite.
    """
    summary = Summary.load()
    predictor = Predictor.load(paths.BEST_CHECKPOINT)
    check_fit(predictor.spec, summary)
    predictor.network.to(memory_format=torch.channels_last)  # takes a third off the time
    run_id = sync.run_of(Path())
    trainer = predicting_trainer(params.evaluate.inference_mode)
    measured = {}
    for part in PARTS:
        print(f"evaluate: {part}, {summary.counts[part]:,} images", flush=True)
        batches = eval_loader(paths.SPLIT / part, params.evaluate.batch_size, params.data.backend)
        logits = predict(trainer, predictor, batches, part)
        labels = torch.from_numpy(np.load(paths.SPLIT / part / "labels.npy"))
        measured[part] = measure(logits, labels, params.evaluate.calibration_bins)

    with paths.writing(paths.EVALUATION) as folder, paths.writing(paths.METRICS) as metrics:
        folder.mkdir()
        tables.write_per_class(folder / "per_class.csv", measured, summary.classes)
        tables.write_predictions(folder / "predictions.csv", measured["test"], summary.classes, file_names("test"))
        tables.write_confusion(folder / "confusion.csv", measured["test"], summary.classes)
        draw(measured["test"], summary.classes, params.evaluate.mistakes, folder)
        figures.save(figures.curves(history.read(paths.HISTORY)), folder / "curves.png")
        sums = {part: measures.summary() for part, measures in measured.items()}
        _write_json(folder / "summary.json", sums)
        _write_json(metrics, {part: {"loss": row["loss"], "acc": row["acc"]} for part, row in sums.items()})
    records.record_evaluation(run_id, Path())
    Console().print(tables.results(measured))


def check_fit(spec: NetworkSpec, summary: Summary) -> None:
    """Refuse a checkpoint that was made for other classes or images than those of the split."""
    for what, of_model, of_data in (
        ("classes", spec.classes, summary.classes),
        ("image shape", (spec.channels, *spec.image_size), summary.image_shape),
    ):
        if tuple(of_model) != tuple(of_data):
            raise TenfoldError(
                f"{paths.BEST_CHECKPOINT}: its {what} {of_model} are not those of {paths.SUMMARY}: "
                f"{of_data}. Train on this data: dvc repro train"
            )


def predict(trainer: Trainer, predictor: Predictor, images: DataLoader[Batch], part: str) -> torch.Tensor:
    """Logits float32 [N, K] of one part of the split, on the CPU."""
    batches = trainer.predict(predictor, images)
    logits = torch.cat([torch.as_tensor(batch).cpu() for batch in batches or []])
    broken = int((~logits.isfinite()).any(dim=1).sum())
    if broken:
        raise TenfoldError(
            f"{paths.BEST_CHECKPOINT}: the logits of {broken:,} of {len(logits):,} images of {part} are not "
            "finite: the training diverged. Lower train.learning_rate and train again"
        )
    return logits


def file_names(part: str) -> list[str] | None:
    """The file that each image of a part comes from, if each comes from one."""
    path = paths.SPLIT / part / FILES
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def draw(test: Measures, classes: tuple[str, ...], mistakes: int, folder: Path) -> None:
    """Draw the pictures of the test set, and samples of what was trained on."""
    images = np.load(paths.SPLIT / "test" / "images.npy", mmap_mode="r")
    train = np.load(paths.SPLIT / "train" / "images.npy", mmap_mode="r")
    labels = np.load(paths.SPLIT / "train" / "labels.npy")
    for name, figure in (
        ("samples", samples(train, labels, classes, "train")),
        ("confusion", evaluation.confusion(test, classes, "test")),
        ("per_class", evaluation.per_class(test, classes, "test")),
        ("calibration", evaluation.calibration(test, "test")),
        ("mistakes", evaluation.mistakes(test, classes, "test", images, mistakes)),
    ):
        figures.save(figure, folder / f"{name}.png")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
