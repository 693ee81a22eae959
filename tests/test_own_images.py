"""Images of one's own: a folder per class becomes a registered model that answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.checkout import Checkout, clone, commit

pytestmark = pytest.mark.xdist_group("own images")  # one clone for all


@pytest.fixture(scope="module")
def own_images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkout, Path]:
    """A clone with the lines changed that somebody changes, after `dvc repro`; and the folder of images."""
    base = tmp_path_factory.mktemp("own")
    checkout = clone(base / "project")
    images = base / "fotos d'été"
    shutil.copytree(checkout.root / "data/example", images)
    checkout.edit("dataset: mnist", "dataset: folder")
    checkout.edit("folder: data/example", f'folder: "{images}"')
    checkout.edit("max_epochs: 4", "max_epochs: 12")  # there are only 120
    commit(checkout, "My images")
    checkout.run("dvc", "repro")
    return checkout, images


def test_two_lines_make_a_registered_model(own_images: tuple[Checkout, Path]) -> None:
    checkout, images = own_images
    classes = sorted(folder.name for folder in images.iterdir())
    summary = json.loads(checkout.read("data/split/summary.json"))
    assert summary["classes"] == classes
    assert sum(summary["counts"].values()) == sum(1 for file in images.rglob("*") if file.is_file())
    metrics = json.loads(checkout.read("reports/metrics.json"))
    assert metrics["test"]["acc"] > 1.5 / len(classes), "it has learned something"
    version = checkout.client().get_model_version_by_alias("tenfold-folder", "champion")
    assert float(version.tags["tenfold.test_acc"]) == metrics["test"]["acc"]
    assert len(checkout.runs("tenfold")) == 1


def test_the_registered_model_answers_as_the_evaluation_says(own_images: tuple[Checkout, Path]) -> None:
    checkout, images = own_images
    program = """
import json, mlflow, numpy as np
mlflow.set_tracking_uri("sqlite:///mlflow.db")
model = mlflow.pyfunc.load_model("models:/tenfold-folder@champion")
images = np.load("data/split/test/images.npy")
print(json.dumps([answer["name"] for answer in model.predict(images.tolist())]))
"""
    answers = json.loads(checkout.run("python", "-W", "ignore", "-c", program).splitlines()[-1])
    rows = [line.split(",") for line in checkout.read("reports/evaluate/predictions.csv").splitlines()]
    predicted, file = rows[0].index("predicted"), rows[0].index("file")
    assert answers == [row[predicted] for row in rows[1:]]
    assert all((images / row[file]).is_file() for row in rows[1:])


def test_a_new_image_is_noticed_and_nothing_else_runs_twice(own_images: tuple[Checkout, Path]) -> None:
    checkout, images = own_images
    assert "Data and pipelines are up to date" in checkout.run("dvc", "repro")
    before = np.load(checkout.root / "data/raw/pool/images.npy", mmap_mode="r").shape[0]
    first = sorted(images.iterdir())[0]
    added = first / "zz new.png"
    shutil.copy(sorted(first.iterdir())[0], added)
    try:
        output = checkout.run("dvc", "repro", "split")
        assert "Running stage 'download'" in output
        assert "images are there more than once" in output
        assert np.load(checkout.root / "data/raw/pool/images.npy", mmap_mode="r").shape[0] == before + 1
    finally:
        added.unlink()
        checkout.run("dvc", "repro", "split")
