"""What goes wrong ends with a clear message and a status that is not 0, and leaves nothing half-written."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkout import Checkout, Pipeline, clone, commit


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, pipeline: Pipeline) -> Checkout:
    """A second clone, with the data, the tuning and the model of the first, to be broken in many ways."""
    checkout = clone(tmp_path_factory.mktemp("broken") / "project")
    checkout.edit("dataset: mnist", "dataset: digits")
    commit(checkout, "Digits")
    for folder in ("data/raw", "data/split", "models", "reports"):
        shutil.copytree(pipeline.checkout.root / folder, checkout.root / folder, dirs_exist_ok=True)
    return checkout


@pytest.fixture
def project_to_break(broken: Checkout) -> Iterator[Checkout]:
    """The second clone; afterwards its tracked files are again as they were."""
    yield broken
    broken.run("git", "checkout", "-q", "--", ".")


@pytest.mark.parametrize("stage", ["download", "split", "tune", "train", "evaluate", "export"])
def test_every_stage_checks_all_settings_first(project_to_break: Checkout, stage: str) -> None:
    project_to_break.edit(r"^  opset: \d+", "  opsett: 20")  # a key of the last stage
    before = sorted(project_to_break.root.rglob("*"))
    output = project_to_break.tenfold(stage, status=1)
    assert "params.yaml: export.opsett: unknown key; did you mean export.opset?" in output
    assert "Traceback" not in output
    assert [path for path in sorted(project_to_break.root.rglob("*")) if "__pycache__" not in path.parts] == [
        path for path in before if "__pycache__" not in path.parts
    ]


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        ("precision: auto", "precision: 16-mixed", "train.precision: '16-mixed' needs a GPU"),
        ("accelerator: auto", "accelerator: gpu", "train.accelerator: 'gpu'"),
    ],
)
def test_hardware_that_is_not_there(project_to_break: Checkout, pattern: str, replacement: str, message: str) -> None:
    project_to_break.edit(pattern, replacement)
    output = project_to_break.run("dvc", "repro", status=None)
    assert message in output
    assert "Traceback" not in output


def test_a_damaged_data_file(project_to_break: Checkout) -> None:
    raw = next((project_to_break.root / "data/raw").glob("*images*"))
    content = raw.read_bytes()
    shutil.rmtree(project_to_break.root / "data/split")
    try:
        raw.write_bytes(content[:-100])
        output = project_to_break.tenfold("split", status=1)
        assert raw.name in output
        assert not (project_to_break.root / "data/split").exists()
        assert list((project_to_break.root / "data").glob(".*.tmp")) == []
    finally:
        raw.write_bytes(content)
        project_to_break.tenfold("split")


def test_a_checkpoint_of_another_network(project_to_break: Checkout) -> None:
    import torch

    file = project_to_break.root / "models/best.ckpt"
    content = file.read_bytes()
    checkpoint = torch.load(file, weights_only=True)
    checkpoint["hyper_parameters"]["spec"]["network"] = "article"
    try:
        torch.save(checkpoint, file)
        before = project_to_break.read("reports/metrics.json")
        output = project_to_break.tenfold("evaluate", status=1)
        assert "models/best.ckpt: holds a network that this version cannot build: 'article'" in output
        assert project_to_break.read("reports/metrics.json") == before
    finally:
        file.write_bytes(content)


@pytest.mark.parametrize("verb", ["ui", "serve"])
def test_a_port_that_is_taken(project_to_break: Checkout, verb: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        output = project_to_break.tenfold(verb, "--port", str(port), status=1)
    assert f"port {port} on 127.0.0.1 cannot be used" in output


@pytest.mark.parametrize("stage", ["tune", "train"])
def test_a_store_that_cannot_be_written(project_to_break: Checkout, stage: str) -> None:
    output = project_to_break.tenfold(stage, status=1, MLFLOW_TRACKING_URI="sqlite:////proc/mlflow.db")
    assert "the MLflow store cannot be written" in output
    assert "Traceback" not in output


def test_a_store_in_a_folder_is_refused(project_to_break: Checkout) -> None:
    output = project_to_break.tenfold("tune", status=1, MLFLOW_TRACKING_URI="./mlruns")
    assert "MLflow 3 no longer writes to" in output


def test_no_git_repository(project_to_break: Checkout) -> None:
    hidden = project_to_break.root / ".git"
    hidden.rename(project_to_break.root / "git")
    try:
        for output in (
            project_to_break.run("dvc", "repro", status=None),
            project_to_break.tenfold("repro", "--max_epochs", "1", status=None),
        ):
            assert "git" in output
            assert "Traceback" not in output
    finally:
        (project_to_break.root / "git").rename(hidden)


def test_not_in_a_project(tmp_path: Path) -> None:
    output = Checkout(tmp_path).tenfold("train", status=1)
    assert "no Tenfold project here" in output
