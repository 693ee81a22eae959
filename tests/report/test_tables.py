from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tenfold.report import tables
from tenfold.report.measures import Measures, measure

CLASSES = ["cat", "dog, wet", "fisch ß"]


@pytest.fixture
def measures() -> Measures:
    logits = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1]]).log()
    return measure(logits, torch.tensor([0, 1, 1]), bins=15)


def read(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_per_class_leaves_empty_what_cannot_be_measured(measures: Measures, tmp_path: Path) -> None:
    tables.write_per_class(tmp_path / "x.csv", {"val": measures, "test": measures}, CLASSES)
    header, *rows = read(tmp_path / "x.csv")
    assert header == ["set", "class", "precision", "recall", "f1", "auroc", "support"]
    assert rows[0] == ["val", "cat", "0.5", "1.0", "0.666667", "1.0", "1"]
    assert rows[5] == ["test", "fisch ß", "", "", "", "", "0"]


def test_predictions(measures: Measures, tmp_path: Path) -> None:
    tables.write_predictions(tmp_path / "x.csv", measures, CLASSES)
    header, *rows = read(tmp_path / "x.csv")
    assert header == ["index", "actual", "predicted", "probability", "p_cat", "p_dog, wet", "p_fisch ß"]
    assert rows[1] == ["1", "dog, wet", "cat", "0.600000", "0.600000", "0.300000", "0.100000"]
    tables.write_confusion(tmp_path / "y.csv", measures, CLASSES)
    assert read(tmp_path / "y.csv") == [row[1:3] for row in (header, *rows)]


def test_results_fit_a_log_of_80_columns(measures: Measures) -> None:
    console = Console(width=80, record=True, quiet=False, file=None)
    with console.capture() as captured:
        console.print(tables.results({"train": measures}))
    assert "train" in captured.get()
    assert "66.67%" in captured.get()
    assert "20.77–93.85%" in captured.get()
