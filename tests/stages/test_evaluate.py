"""The stage on a small split, with a real store."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
from torch import Tensor

from tenfold import paths
from tenfold.data.summary import Duplicates, Summary
from tenfold.errors import TenfoldError
from tenfold.modeling import checkpoint
from tenfold.modeling.networks import NetworkSpec, build
from tenfold.params import Params
from tenfold.stages import evaluate
from tenfold.tracking import runs, store

REPOSITORY = Path(__file__).parents[2]
SPEC = NetworkSpec("article", 4, 0.5, 1, (12, 12), ("ant", "bee", "cat"), (0.5,), (0.3,))
NO_DUPLICATES = Duplicates(copies=0, contradicting=0, val_in_train=0, test_in_train=0, test_in_val=0, removed=0)
COUNTS = {"train": 50, "val": 20, "test": 33}
FILES = [
    "calibration.png", "confusion.csv", "confusion.png", "curves.png", "mistakes.png", "per_class.csv", "per_class.png",
    "predictions.csv", "samples.png", "summary.json",
]  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory: a project with a split, a checkpoint and its run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "DVC_ROOT"):
            patch.delenv(name, raising=False)
        root = tmp_path_factory.mktemp("project")
        patch.chdir(root)
        shutil.copy(REPOSITORY / "params.yaml", root)
        random = np.random.default_rng(0)
        for part, count in COUNTS.items():
            (paths.SPLIT / part).mkdir(parents=True)
            np.save(paths.SPLIT / part / "images.npy", random.integers(0, 256, (count, 1, 12, 12), dtype=np.uint8))
            np.save(paths.SPLIT / part / "labels.npy", np.arange(count) % 3)
        Summary.model_construct(
            dataset="insects", classes=SPEC.classes, image_shape=(1, 12, 12), counts=COUNTS, per_class={},
            imbalance=1.0, mean=SPEC.mean, std=SPEC.std,
            duplicates=NO_DUPLICATES, skipped={}, sha256={},
        ).save(paths.SUMMARY)  # fmt: skip
        torch.manual_seed(0)
        train(SPEC)
        yield root
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]


def train(spec: NetworkSpec, spoil: float = 1.0) -> None:
    """Write a checkpoint with random weights, and open the run of its training."""
    network = build(spec)
    for weights in network.parameters():
        weights.data *= spoil
    paths.BEST_CHECKPOINT.parent.mkdir(exist_ok=True)
    checkpoint.save(paths.BEST_CHECKPOINT, network, spec, {})
    paths.TRAIN_REPORT.mkdir(parents=True, exist_ok=True)
    paths.HISTORY.write_text("epoch,step,lr,train/loss,train/acc,val/loss,val/acc\n0,9,0.1,0.5,0.9,0.4,0.95\n")
    with runs.open_run("tenfold", "insects", root=Path()) as run:
        run.tag({runs.MODEL: runs.file_sha256(paths.BEST_CHECKPOINT), runs.RECORD: runs.WHOLE})


@pytest.fixture
def params(project: Path) -> Params:
    params = Params.load()
    return params.model_copy(update={"evaluate": params.evaluate.model_copy(update={"batch_size": 16})})


@pytest.fixture
def another_checkpoint() -> Iterator[None]:
    """Puts the module's checkpoint back afterwards."""
    original = paths.BEST_CHECKPOINT.read_bytes()
    yield
    paths.BEST_CHECKPOINT.write_bytes(original)


def outs() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path("reports").rglob("*") if path.is_file()}


def logits(part: str) -> Tensor:
    """What the checkpoint says to a whole part at once."""
    network, _ = checkpoint.load_network(paths.BEST_CHECKPOINT)
    with torch.inference_mode():
        answer: Tensor = network(torch.from_numpy(np.load(paths.SPLIT / part / "images.npy")))
    return answer


def test_the_stage(params: Params, capfd: pytest.CaptureFixture[str]) -> None:
    evaluate.run(params)
    out, err = capfd.readouterr()
    assert out.splitlines()[:3] == [f"evaluate: {part}, {count} images" for part, count in COUNTS.items()]
    assert err == ""  # no bar in a log, none of Lightning's advice

    expected = {}
    for part, count in COUNTS.items():
        truth = torch.arange(count) % 3
        expected[part] = {
            "loss": round(float(torch.nn.functional.cross_entropy(logits(part), truth)), 6),
            "acc": round(int((logits(part).argmax(1) == truth).sum()) / count, 6),
        }
    metrics: dict[str, Any] = json.loads(paths.METRICS.read_text())
    assert metrics == {part: pytest.approx(values, abs=2e-6) for part, values in expected.items()}

    assert sorted(path.name for path in paths.EVALUATION.iterdir()) == FILES
    assert [path.name for path in Path("reports").iterdir() if path.name.startswith(".")] == []
    summary = json.loads((paths.EVALUATION / "summary.json").read_text())
    assert {part: {key: row[key] for key in ("loss", "acc")} for part, row in summary.items()} == metrics
    assert {part: row["n"] for part, row in summary.items()} == COUNTS
    with (paths.EVALUATION / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["actual"] for row in rows] == [SPEC.classes[i % 3] for i in range(33)]
    assert [row["predicted"] for row in rows] == [SPEC.classes[i] for i in logits("test").argmax(1)]
    assert [float(row["p_bee"]) for row in rows] == pytest.approx(logits("test").softmax(1)[:, 1].tolist(), abs=2e-6)

    first = outs()
    evaluate.run(params)
    assert outs() == first

    (run,) = store.client().search_runs([store.experiment("tenfold")])
    assert run.data.metrics["test/acc"] == metrics["test"]["acc"]
    assert run.data.metrics["val/ece"] == summary["val"]["ece"]
    pictures = {Path(item.path).name for item in store.client().list_artifacts(run.info.run_id, "evaluate")}
    assert {"confusion.png", "mistakes.png", "predictions.csv", "metrics.json"} <= pictures


@pytest.mark.usefixtures("another_checkpoint")
@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (replace(SPEC, classes=("ant", "bee")), r"\('ant', 'bee'\).*'cat'"),
        (replace(SPEC, image_size=(14, 12)), r"\(1, 14, 12\).*\(1, 12, 12\)"),
    ],
)
def test_a_checkpoint_for_other_data_is_refused(spec: NetworkSpec, named: str, params: Params) -> None:
    before = outs()
    train(spec)
    with pytest.raises(TenfoldError, match=rf"models/best.ckpt: its .*{named}.*dvc repro train"):
        evaluate.run(params)
    assert outs() == before


@pytest.mark.usefixtures("another_checkpoint")
def test_a_diverged_model_is_refused(params: Params) -> None:
    before = outs()
    train(SPEC, spoil=float("nan"))
    with pytest.raises(TenfoldError, match="logits of 50 of 50 images of train are not finite"):
        evaluate.run(params)
    assert outs() == before
