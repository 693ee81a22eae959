"""A small project with files of every kind, and a real SQLite store, set up once and copied for each test."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tenfold.data.summary import Duplicates, Summary
from tenfold.params import Params
from tenfold.serving import packaging

REPOSITORY = Path(__file__).parents[2]

OPEN_STORE = "from tenfold.tracking import store; print(store.experiment('tenfold'))"

SERVED = """
from typing import Any

import mlflow
import numpy as np
import onnxruntime


class Model(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.session = onnxruntime.InferenceSession(context.artifacts["onnx"])

    def predict(self, model_input: list[Any], params=None):
        images = np.asarray(model_input, dtype=np.float32)
        return self.session.run(None, {"images": images})[0].tolist()


mlflow.models.set_model(Model())
"""

METRICS = {
    "train": {"loss": 0.01, "acc": 0.999},
    "val": {"loss": 0.02, "acc": 0.995},
    "test": {"loss": 0.03, "acc": 0.994},
}
HISTORY = """epoch,step,lr,train/loss,train/acc,val/loss,val/acc
0,10,0.01,0.5,0.9,0.4,0.91
1,20,0.001,0.3,0.95,0.2,0.96
"""


@pytest.fixture(scope="session")
def new_stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[subprocess.CompletedProcess[str]]]:
    """A store that two processes set up at the same moment, and what became of them."""
    folder = tmp_path_factory.mktemp("neu im Häuschen")
    environment = {"PATH": "/usr/bin:/bin", "DVC_ROOT": str(folder)}
    command = [sys.executable, "-c", OPEN_STORE]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, cwd=cwd)
        for cwd in (folder, folder.parent)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    ended = zip(processes, outputs, strict=True)
    return folder, [subprocess.CompletedProcess(command, p.returncode, *output) for p, output in ended]


@pytest.fixture
def project(tmp_path: Path, new_stores: tuple[Path, object], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory: a project after all six stages, with an empty store."""
    import mlflow

    root = tmp_path / "my projäct"
    root.mkdir()
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "DVC_ROOT", "DVC_EXP_NAME"):
        monkeypatch.setenv(name, "")  # so that what MLflow sets is undone as well
        monkeypatch.delenv(name)
    monkeypatch.chdir(root)
    shutil.copy(new_stores[0] / "mlflow.db", root)
    shutil.copy(REPOSITORY / "params.yaml", root)
    served = tmp_path / "served.py"
    served.write_text(SERVED)
    monkeypatch.setattr(packaging, "MODEL", served)
    monkeypatch.setattr(packaging, "SOURCES", (served,))
    write_project(root)
    yield root
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type]  # it does reset


@pytest.fixture
def params(project: Path) -> Params:
    return Params.load(project / "params.yaml")


def write_project(root: Path) -> None:
    """Write files like those of the stages, of three classes and images of 4×4."""
    for name in ("models", "reports/train", "reports/tune", "reports/evaluate"):
        (root / name).mkdir(parents=True)
    counts = {"train": 6, "val": 3, "test": 3}
    for part, count in counts.items():
        (root / "data/split" / part).mkdir(parents=True)
        np.save(root / "data/split" / part / "images.npy", np.full((count, 1, 4, 4), 7, np.uint8))
        np.save(root / "data/split" / part / "labels.npy", np.arange(count) % 3)
    Summary(
        dataset="mnist",
        classes=("0", "1", "2"),
        image_shape=(1, 4, 4),
        counts=counts,
        per_class={part: (count // 3,) * 3 for part, count in counts.items()},
        mean=(0.5,),
        std=(0.5,),
        imbalance=1.0,
        duplicates=Duplicates(copies=0, contradicting=0, val_in_train=0, test_in_train=0, test_in_val=0, removed=0),
        skipped={},
        sha256={part: hashlib.sha256(part.encode()).hexdigest() for part in counts},
    ).save(root / "data/split/summary.json")
    (root / "models/best.ckpt").write_bytes(b"weights")
    found = {"learning_rate": {"value": 0.012, "source": "finder"}, "batch_size": {"value": 64, "source": "power"}}
    write_json(root / "reports/tune/tune.json", found)
    (root / "reports/train/history.csv").write_text(HISTORY)
    write_json(root / "reports/metrics.json", METRICS)
    write_json(root / "reports/evaluate/summary.json", {"test": {"ece": 0.004, "n": 3, "note": "x"}})
    (root / "reports/evaluate/confusion.png").write_bytes(b"picture")
    write_onnx(root / "models/model.onnx")


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def write_onnx(path: Path) -> None:
    """A model that gives an image's pixels back as a row."""
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 4, 4])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 16])
    node = helper.make_node("Flatten", ["images"], ["logits"])
    graph = helper.make_graph([node], "g", [images], [logits])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
