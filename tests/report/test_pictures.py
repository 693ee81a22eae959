"""Figures, drawn and written; what they look like is for eyes, what they say is tested."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tenfold.report import evaluation, figures
from tenfold.report.measures import Measures, measure

HOSTILE = "font.family: monospace\nfont.size: 20\naxes.facecolor: black\nsavefig.dpi: 30\nlines.linewidth: 9\n"
HISTORY = [
    {"epoch": 0, "lr": 0.01, "train/loss": 0.5, "train/acc": 0.9, "val/loss": 0.3, "val/acc": 0.95},
    {"epoch": 1, "lr": 0.02, "train/loss": 0.3, "train/acc": 0.95, "val/loss": 0.1, "val/acc": 0.98},
    {"epoch": 2, "lr": 0.001, "train/loss": 0.2, "train/acc": 0.96, "val/loss": 0.2, "val/acc": 0.97},
]


def example(n: int = 60, k: int = 4, strength: float = 2, channels: int = 1) -> tuple[Measures, NDArray[np.uint8]]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % k
    logits = torch.randn(n, k, generator=generator)
    logits[torch.arange(n), labels] += strength
    images = torch.randint(0, 256, (n, channels, 6, 9), generator=generator, dtype=torch.uint8).numpy()
    return measure(logits, labels, bins=10), images


def draw_all() -> dict[str, Figure]:
    measures, images = example()
    names = ["cat", "dog", "$x_1$", "a name of some length"]
    return {
        "confusion": evaluation.confusion(measures, names, "test"),
        "per_class": evaluation.per_class(measures, names, "test"),
        "calibration": evaluation.calibration(measures, "test"),
        "mistakes": evaluation.mistakes(measures, names, "test", images, 9),
        "curves": figures.curves(HISTORY),
        "search": figures.learning_rate_search([1e-3, 1e-2, 1e-1], [2, 1, 3], 0.01, raw=[2, 1.5, 9]),
    }


def hashes(folder: Path) -> dict[str, str]:
    result = {}
    for name, figure in draw_all().items():
        figures.save(figure, folder / name)
        result[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return result


def test_the_same_bytes_in_another_process_with_another_taste(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text(HOSTILE)
    code = f"import runpy, pathlib; f = runpy.run_path({__file__!r}); print(f['hashes'](pathlib.Path.cwd()))"
    environment = os.environ | {"MATPLOTLIBRC": str(tmp_path), "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    there = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    (tmp_path / "here").mkdir()
    assert there.stdout.strip() == str(hashes(tmp_path / "here"))


def test_files_hold_pixels_and_nothing_else(tmp_path: Path) -> None:
    figures.save(draw_all()["confusion"], tmp_path / "x.tmp")
    content = (tmp_path / "x.tmp").read_bytes()
    kinds, place = set(), 8
    while place < len(content):
        length, kind = struct.unpack_from(">I4s", content, place)
        kinds.add(kind)
        place += length + 12
    assert kinds == {b"IHDR", b"pHYs", b"IDAT", b"IEND"}


def test_drawing_leaves_the_users_settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mpl.rcParams, "font.size", 33.0)
    figures.curves(HISTORY)
    assert mpl.rcParams["font.size"] == 33


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_text()]


def pixels(figure: Figure, tmp_path: Path) -> tuple[int, int]:
    figures.save(figure, tmp_path / "figure.png")
    width, height = struct.unpack_from(">II", (tmp_path / "figure.png").read_bytes(), 16)
    return width, height


def test_confusion_shows_every_count_and_no_zeros() -> None:
    measures, _ = example(k=3)
    shown = texts(evaluation.confusion(measures, ["a", "$b$", "c"], "test"))
    assert {str(count) for count in measures.confusion.ravel() if count} <= set(shown)
    assert "0" not in shown
    assert {"a", "$b$", "c"} <= set(shown)
    wrong = int((measures.predicted != measures.actual).sum())
    assert any(f"{wrong} of 60 wrong" in text for text in shown)


@pytest.mark.parametrize("k", [2, 100])
def test_few_and_many_classes_give_pictures_of_bearable_size(k: int, tmp_path: Path) -> None:
    measures, images = example(n=3 * k, k=k)
    names = [f"class number {i} of a long name" for i in range(k)]
    drawn = [
        evaluation.confusion(measures, names, "test"),
        evaluation.per_class(measures, names, "test"),
        evaluation.mistakes(measures, names, "test", images, 100),
    ]
    for figure in drawn:
        width, height = pixels(figure, tmp_path)
        assert 700 <= width <= 1100
        assert 200 <= height <= 2200


def test_classes_come_hardest_first_and_one_without_images_last() -> None:
    logits = torch.eye(3)[[0, 0, 0, 1]] * 5
    measures = measure(logits, torch.tensor([0, 0, 1, 1]), bins=5)
    figure = evaluation.per_class(measures, ["good", "bad", "absent"], "test")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["bad", "good", "absent"]
    assert {"1 of 2 missed", "0 of 2 missed", "no images"} <= set(texts(figure))


@pytest.mark.parametrize("channels", [1, 3])
def test_mistakes_are_the_most_confident_wrong_answers(channels: int) -> None:
    measures, images = example(channels=channels)
    figure = evaluation.mistakes(measures, ["a", "b", "c", "d"], "test", images, 3)
    wrong = [i for i in range(60) if measures.predicted[i] != measures.actual[i]]
    worst = sorted(wrong, key=lambda i: -measures.confidence[i])[:3]
    expected = [
        f"{'abcd'[measures.actual[i]]} → {'abcd'[measures.predicted[i]]}   {measures.confidence[i]:.1%}" for i in worst
    ]
    assert [text for text in texts(figure) if "%" in text] == expected
    for index, drawn in zip(worst, figure.axes[0].images, strict=True):
        pixels: Any = drawn.get_array()
        assert (np.asarray(pixels).reshape(6, 9, channels) == np.moveaxis(images[index], 0, -1)).all()


def test_fewer_mistakes_than_asked_for_and_none(tmp_path: Path) -> None:
    measures, images = example()
    wrong = int((measures.predicted != measures.actual).sum())
    figure = evaluation.mistakes(measures, list("abcd"), "test", images, 100)
    assert len(figure.axes[0].images) == wrong < 100
    assert any(f"all {wrong}" in text for text in texts(figure))
    perfect, images = example(strength=100)
    figure = evaluation.mistakes(perfect, list("abcd"), "test", images, 100)
    assert texts(figure) == ["No mistakes among the 60 images of test."]
    assert pixels(figure, tmp_path)[0] == 900


def test_calibration_of_one_bin_and_of_empty_ones(tmp_path: Path) -> None:
    logits, labels = torch.tensor([[9.0, 0], [0, 9]]), torch.tensor([0, 1])
    for bins in (1, 15):
        pixels(evaluation.calibration(measure(logits, labels, bins), "test"), tmp_path)


def test_curves_mark_the_best_epoch() -> None:
    shown = texts(figures.curves(HISTORY))
    assert {"best val: 0.1000", "best val: 98.00%"} <= set(shown)


def test_curves_take_text_and_gaps(tmp_path: Path) -> None:
    rows = [{name: str(value) for name, value in row.items()} for row in HISTORY]
    assert texts(figures.curves(rows)) == texts(figures.curves(HISTORY))
    del rows[0]["val/loss"]
    rows[1]["val/loss"] = ""
    figure = figures.curves(rows)
    assert np.asarray(figure.axes[0].lines[1].get_xydata()).tolist() == [[3, 0.2]]
    pixels(figure, tmp_path)
    without_val = [{name: row[name] for name in row if "val" not in name} for row in HISTORY[:1]]
    pixels(figures.curves(without_val), tmp_path)


def test_search_with_and_without_a_suggestion(tmp_path: Path) -> None:
    rates = np.geomspace(1e-4, 1, 30)
    losses = (np.log10(rates) + 2) ** 2
    figure = figures.learning_rate_search(rates, losses, 0.004)
    assert "Learning rate: 0.004 suggested" in texts(figure)
    assert "0.001" in [label.get_text() for label in figure.axes[0].get_xticklabels()]
    losses[-5:] = np.inf
    losses[-1] = np.nan
    figure = figures.learning_rate_search(rates, losses, None)
    assert "Learning rate: the curve gives no suggestion" in texts(figure)
    pixels(figure, tmp_path)
    pixels(figures.learning_rate_search([0.1], [np.nan], None), tmp_path)
