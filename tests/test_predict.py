"""`tenfold predict`, as people type it, with the champion of the pipeline on `digits`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.checkout import Checkout, Pipeline, clean_environment


@pytest.fixture(scope="module")
def checkout(pipeline: Pipeline) -> Checkout:
    """The project, with five test images as files, ten times as large and dark on light."""
    root = pipeline.checkout.root
    pipeline.checkout.tenfold("promote", "1")
    (root / "pictures/more").mkdir(parents=True)
    for number, image in enumerate(np.load(root / "data/split/test/images.npy")[:5, 0]):
        picture = Image.fromarray(255 - image).resize((80, 80), Image.Resampling.NEAREST)
        picture.save(root / "pictures" / ("more/4.webp" if number == 4 else f"{number}.png"), lossless=True)
    (root / "pictures/notes.txt").write_text("no image")
    (root / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nhello")
    return pipeline.checkout


def expected(checkout: Checkout) -> list[str]:
    rows = csv.DictReader(checkout.read("reports/evaluate/predictions.csv").splitlines())
    return [row["predicted"] for row in rows][:5]


def test_a_folder_as_json(checkout: Checkout) -> None:
    answers = json.loads(checkout.tenfold("predict", "pictures", "--json", "--top-k", "0"))
    assert [answer["file"] for answer in answers] == [f"pictures/{n}.png" for n in range(4)] + ["pictures/more/4.webp"]
    right = [answer["name"] == name for answer, name in zip(answers, expected(checkout), strict=True)]
    assert sum(right) >= 3, "made small again, a picture of 8x8 pixels is not the same to the pixel"
    assert all(len(answer["probabilities"]) == 10 for answer in answers)
    assert list(answers[0]) == ["file", "label", "name", "probability", "probabilities"]


def test_a_table_a_numpy_file_and_the_picture_that_explains(checkout: Checkout) -> None:
    np.save(checkout.root / "five.npy", np.load(checkout.root / "data/split/test/images.npy")[:5, 0])
    output = checkout.tenfold("predict", "five.npy", "--explain", "seen.png", "--model", "models:/tenfold-digits/1")
    rows = [line.split() for line in output.splitlines() if line.startswith("five.npy[")]
    assert [row[:2] for row in rows] == [[f"five.npy[{n}]", name] for n, name in enumerate(expected(checkout))]
    assert "seen.png: what the network saw" in output
    with Image.open(checkout.root / "seen.png") as picture:
        assert picture.width > picture.height
        assert len(picture.getcolors(1 << 20) or []) > 10


def test_standard_input_from_another_folder(checkout: Checkout) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tenfold", "predict", "-", "3.png", "--json"],
        input=(checkout.root / "pictures/0.png").read_bytes(),
        cwd=checkout.root / "pictures",
        env=clean_environment() | {"PYTHONPATH": str(checkout.root / "src")},
        capture_output=True,
        check=True,
    )
    assert [answer["file"] for answer in json.loads(done.stdout)] == ["-", "3.png"]


def test_a_model_in_a_folder_and_names_start_from_where_one_is(checkout: Checkout) -> None:
    folder = next((checkout.root / "mlruns").rglob("artifacts/model.onnx")).parents[1]
    elsewhere = checkout.root / "pictures"
    (elsewhere / "exported").symlink_to(folder)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tenfold", "predict", "0.png", "--model", "exported", "--json"],
            cwd=elsewhere,
            env=clean_environment() | {"PYTHONPATH": str(checkout.root / "src")},
            capture_output=True,
            check=True,
        )
    finally:
        (elsewhere / "exported").unlink()
    assert [answer["file"] for answer in json.loads(done.stdout)] == ["0.png"]


def test_a_photograph_on_its_side_is_explained_upright(checkout: Checkout) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = Image.open(checkout.root / "pictures/0.png").resize((200, 80)).rotate(90, expand=True)
    lying.save(checkout.root / "lying.png", exif=exif)
    checkout.tenfold("predict", "lying.png", "--explain", "seen.png")
    with Image.open(checkout.root / "seen.png") as sheet:
        original = np.asarray(sheet.convert("L"))[4:136, 4:136]
    dark = np.argwhere(original < 128)
    height, width = np.ptp(dark, axis=0)
    assert width > height, "it is shown as it is to be held"
    (checkout.root / "lying.png").unlink()


def test_what_has_no_answer_is_named_and_the_others_are_answered(checkout: Checkout) -> None:
    output = checkout.tenfold("predict", "broken.png", "pictures/0.png", "missing.png", status=1)
    assert "error: broken.png: is no image (PNG, JPEG, BMP, TIFF, WEBP)" in output
    assert "error: missing.png: No such file or directory" in output
    assert [line.split()[0] for line in output.splitlines() if line.startswith("pictures")] == ["pictures/0.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pictures", "--model", "models:/nobody@champion"], "models:/nobody@champion: there is no such model in"),
        (["pictures", "--model", "data"], "data: not a model that Tenfold serves"),
        (["models"], "models: no images in this folder"),
        (["pictures", "--model", "http://127.0.0.1:1/x"], "http://127.0.0.1:1/x: there is no such model in"),
        (["pictures", "--explain", "nowhere/seen.png"], "--explain: "),
        ([""], ": is no image"),
    ],
)
def test_refused(checkout: Checkout, arguments: list[str], message: str) -> None:
    output = checkout.tenfold("predict", *arguments, status=1)
    assert f"error: {message}" in output
    assert "Traceback" not in output


def test_outside_a_project_nothing_is_loaded(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tenfold", "predict", "x.png"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "error:" in done.stderr
