"""A small network as ONNX file and as saved MLflow model, made once."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
import torch

from tenfold.datasets import DATASETS
from tenfold.modeling import onnx
from tenfold.modeling.networks import NetworkSpec, build
from tenfold.serving import packaging
from tenfold.serving.classifier import Classifier

Check = Callable[[list[dict[str, Any]], int], None]
CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@pytest.fixture(scope="session")
def images() -> npt.NDArray[np.uint8]:
    """256 grey images [256, 1, 28, 28], from nearly black to full of noise."""
    noise = np.random.default_rng(0).integers(0, 256, (256, 1, 28, 28))
    return (noise * np.linspace(0.05, 1, 256)[:, None, None, None]).astype(np.uint8)


@pytest.fixture(scope="session")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = NetworkSpec("article", 4, 0.0, 1, (28, 28), CLASSES, (0.13,), (0.31,))
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    network = build(spec)
    for layer in network.modules():
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.normal_(layer.weight)  # bold enough to say different things of different images
    onnx.export(network, spec, path, 20, DATASETS["mnist"].handwriting)
    return path


@pytest.fixture(scope="session")
def classifier(onnx_file: Path) -> Classifier:
    return Classifier(onnx_file)


@pytest.fixture(scope="session")
def saved(onnx_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as MLflow saves it, moved away from where it was saved."""
    made, moved = tmp_path_factory.mktemp("made") / "model", tmp_path_factory.mktemp("moved") / "model"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*Any type hint")  # when MLflow is imported
        packaging.save(made, onnx_file, np.zeros((1, 28, 28), np.uint8))
    shutil.move(made, moved)
    return moved


@pytest.fixture(scope="session")
def check(onnx_file: Path, images: npt.NDArray[np.uint8]) -> Check:
    """Holds answers to the first images against ONNX Runtime and a textbook softmax."""
    (logits,) = onnxruntime.InferenceSession(onnx_file).run(["logits"], {"images": images})
    powers = np.exp(logits.astype(np.float64))
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    assert len(set(probabilities.argmax(axis=1))) > 1, "a network that always says the same proves nothing"

    def check(answers: list[dict[str, Any]], count: int) -> None:
        assert len(answers) == count
        for answer, expected in zip(answers, probabilities[:count], strict=True):
            label = int(expected.argmax())
            assert list(answer) == ["label", "name", "probability", "probabilities"]
            assert answer["label"] == label
            assert answer["name"] == CLASSES[label]
            assert answer["probability"] == answer["probabilities"][CLASSES[label]]
            assert tuple(answer["probabilities"]) == CLASSES
            assert list(answer["probabilities"].values()) == pytest.approx(list(expected), abs=1e-5)

    return check
