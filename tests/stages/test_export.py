"""What stops the export, and that nothing is left behind then. The way through is part of the pipeline's test."""

from pathlib import Path

import numpy as np
import pytest

from tenfold import paths
from tenfold.errors import TenfoldError
from tenfold.modeling import checkpoint, onnx
from tenfold.modeling.networks import NetworkSpec, build
from tenfold.params import Params
from tenfold.stages import export

SPEC = NetworkSpec("article", 4, 0.0, 1, (28, 28), ("a", "b"), (0.13,), (0.31,))


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """The shipped settings; the working directory is a folder with a checkpoint and with the model of another day."""
    params = Params.load(Path(__file__).parents[2] / paths.PARAMS)
    monkeypatch.chdir(tmp_path)
    paths.ONNX_MODEL.parent.mkdir()
    paths.ONNX_MODEL.write_text("old")
    checkpoint.save(paths.BEST_CHECKPOINT, build(SPEC), SPEC, {})
    export.TEST_IMAGES.parent.mkdir(parents=True)
    return params


def left() -> list[str]:
    return sorted(path.name for path in paths.ONNX_MODEL.parent.iterdir())


def test_no_test_set(params: Params) -> None:
    with pytest.raises(TenfoldError, match=r"test/images.npy: cannot be read .* Make it: dvc repro split"):
        export.run(params)


def test_test_images_of_another_size(params: Params) -> None:
    np.save(export.TEST_IMAGES, np.zeros((5, 1, 8, 8), np.uint8))
    with pytest.raises(TenfoldError, match=r"holds uint8 images \(1, 8, 8\), but .* was trained on .* \(1, 28, 28\)"):
        export.run(params)


def test_no_checkpoint(params: Params) -> None:
    paths.BEST_CHECKPOINT.unlink()
    with pytest.raises(TenfoldError, match=r"best\.ckpt"):
        export.run(params)


def test_a_file_that_answers_otherwise_does_not_take_the_place(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(export.TEST_IMAGES, np.full((5, 1, 28, 28), 200, np.uint8))
    monkeypatch.setattr(onnx, "TOLERANCE", -1.0)  # which nothing can keep
    with pytest.raises(TenfoldError, match=r"0 of 5 predictions differ, logits by up to .* \(allowed: -1\)"):
        export.run(params)
    assert left() == ["best.ckpt", "model.onnx"]
    assert paths.ONNX_MODEL.read_text() == "old"
