"""The served model inside one process: what it answers, what it refuses, where it loads."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PyFuncModel, load_model
from mlflow.pyfunc.model import PythonModelContext

from tenfold.serving import model
from tenfold.serving.model import PixelModel, Refused, to_pixels

Check = Callable[[list[dict[str, Any]], int], None]
GREY, COLOUR = (1, 28, 28), (3, 4, 5)
IMAGE: list[list[Any]] = [[0] * 28 for _ in range(28)]


def with_pixel(value: object) -> list[Any]:
    """Two black images, the second with `value` in row 5, column 7."""
    image = [row.copy() for row in IMAGE]
    image[5][7] = value
    return [IMAGE, image]


@pytest.fixture(scope="module")
def served(saved: Path) -> PyFuncModel:
    return load_model(str(saved))


@pytest.mark.parametrize("count", [1, 7, 256])
def test_answers_are_those_of_onnx_runtime(
    served: PyFuncModel, images: npt.NDArray[np.uint8], check: Check, count: int
) -> None:
    check(served.predict(images[:count, 0].tolist()), count)


def test_other_ways_to_write_the_same_images(images: npt.NDArray[np.uint8]) -> None:
    grey = images[:3]
    for written in (
        grey[:, 0].tolist(),
        grey.tolist(),
        list(grey),
        list(grey[:, 0]),
        grey[:, 0].astype(float).tolist(),
    ):
        pixels = to_pixels(written, GREY)
        assert pixels.dtype == np.uint8
        np.testing.assert_array_equal(pixels, grey)


def test_colour() -> None:
    colour = np.random.default_rng(0).integers(0, 256, (2, *COLOUR), dtype=np.uint8)
    np.testing.assert_array_equal(to_pixels(colour.tolist(), COLOUR), colour)
    with pytest.raises(Refused, match=r"inputs is one image.*3 planes of 4 rows of 5 whole numbers"):
        to_pixels(colour[0].tolist(), COLOUR)
    with pytest.raises(Refused, match=r"inputs\[0\] is 4x5, not 3x4x5"):
        to_pixels(colour[:, 0].tolist(), COLOUR)
    spoilt = colour.tolist()
    spoilt[1][2][3][4] = 256
    with pytest.raises(Refused, match=r"inputs\[1\]\[2\]\[3\]\[4\] is 256, not a pixel"):
        to_pixels(spoilt, COLOUR)


REFUSED = {
    "half": (with_pixel(0.5), r"inputs\[1\]\[5\]\[7\] is 0.5, not a pixel"),
    "negative": (with_pixel(-1), r"inputs\[1\]\[5\]\[7\] is -1, not a pixel"),
    "over 255": (with_pixel(256), r"inputs\[1\]\[5\]\[7\] is 256, not a pixel"),
    "nan": (with_pixel(float("nan")), r"\[7\] is nan, not a pixel"),
    "infinite": (with_pixel(float("-inf")), r"\[7\] is -inf, not a pixel"),
    "huge": (with_pixel(10**400), r"\[7\] is 10{29}, not a pixel"),
    "null": (with_pixel(None), r"\[7\] is null, not a pixel"),
    "string": (with_pixel("7"), r"\[7\] is a string, not a pixel"),
    "boolean": (with_pixel(True), r"\[7\] is a boolean, not a pixel"),
    "list": (with_pixel([1]), r"\[7\] is a list, not a pixel"),
    "object": (with_pixel({}), r"\[7\] is an object, not a pixel"),
    "scaled": ([(np.eye(28) / 2).tolist()], r"inputs\[0\]\[0\]\[0\] is 0.5, not a pixel.*not scaled"),
    "zeros and ones": (with_pixel(1), r"inputs\[1\] holds only 0 and 1, as if 1 were white"),
    "zeros and ones as fractions": ([np.eye(28).tolist()], r"inputs\[0\] holds only 0 and 1"),
    "ragged": ([IMAGE, [*IMAGE[:27], [0] * 27]], r"inputs\[1\] is rows of unequal length, not 28x28"),
    "a number among rows": ([[*IMAGE[:27], 0]], r"inputs\[0\] is rows of unequal length, not 28x28"),
    "too small": ([IMAGE[:27]], r"inputs\[0\] is 27x28, not 28x28"),
    "flat": ([[0] * 784], r"inputs\[0\] is 784, not 28x28"),
    "two planes": ([[IMAGE, IMAGE]], r"inputs\[0\] is 2x28x28, not 28x28"),
    "too deep": ([[[IMAGE]]], r"inputs\[0\] is 1x1x28x28, not 28x28"),
    "mixed nesting": ([IMAGE, [IMAGE]], "some images are 28x28, some 1x28x28"),
    "arrays of two sizes": ([np.zeros((28, 28)), np.zeros((28, 27))], r"inputs\[1\] is 28x27, not 28x28"),
    "one image": (IMAGE, r"inputs is one image, not a list of images: send \[image\]"),
    "one row": (IMAGE[0], r"inputs\[0\] is 0, not 28x28"),
    "28 images of 28 bad rows": ([[[0]] * 28] * 28, r"inputs\[0\] is 28x1, not 28x28"),
    "28 ragged images": ([[[0]] * 27 + [[]]] * 28, r"inputs\[0\] is rows of unequal length, not 28x28"),
    "no images": ([], "inputs is an empty list, not a list of images"),
    "empty image": ([[]], r"inputs\[0\] is an empty list, not 28x28"),
    "an image file": (["iVBORw0KGgo="], r"inputs\[0\] is a string, not 28x28"),
    "null image": ([IMAGE, None], r"inputs\[1\] is null, not 28x28"),
    "object image": ([{"pixels": IMAGE}], r"inputs\[0\] is an object, not 28x28"),
    "an object": ({"images": [IMAGE]}, "inputs is an object, not a list of images"),
    "a string": ("7", "inputs is a string, not a list of images"),
    "nothing": (None, "inputs is null, not a list of images"),
}


@pytest.mark.parametrize(("sent", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(served: PyFuncModel, sent: object, message: str) -> None:
    with pytest.raises(MlflowException, match=message) as caught:
        served.predict(sent)
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"
    assert 'Send {"inputs": [image, ...]}, each image 28 rows of 28 whole numbers from 0 to 255' in str(caught.value)
    assert len(str(caught.value)) < 250


def test_the_answer_to_a_refused_request_holds_no_pixels() -> None:
    refused = Refused("short")
    refused.message = "Failed to predict data '[[[0, 0, 0…"  # as MLflow's server does
    assert json.loads(refused.serialize_as_json())["message"] == "short"


def test_black_images_are_images(served: PyFuncModel) -> None:
    answers: Any = served.predict([IMAGE])
    assert sum(answers[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def test_loads_anywhere_without_torch_and_without_the_project(
    saved: Path, images: npt.NDArray[np.uint8], check: Check, tmp_path: Path
) -> None:
    (tmp_path / "images.json").write_text(json.dumps(images[:5, 0].tolist()))
    code = (  # None in sys.modules: cannot be imported
        "import json, sys\n"
        "sys.modules.update(dict.fromkeys(['torch', 'tenfold', 'onnx', 'pytorch_lightning']))\n"
        "import mlflow\n"
        "model = mlflow.pyfunc.load_model(sys.argv[1])\n"
        "print(json.dumps(model.predict(json.load(open('images.json')))))\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "MLFLOW"))}
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, saved],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    check(json.loads(done.stdout), 5)
    assert done.stderr == ""


def test_the_file_imports_little() -> None:
    nodes = list(ast.walk(ast.parse(Path(model.__file__).read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    others = {name.split(".")[0] for name in names} - sys.stdlib_module_names
    assert others == {"mlflow", "numpy", "onnxruntime"}


def test_signature_and_example(saved: Path) -> None:
    described = (saved / "MLmodel").read_text(encoding="utf-8")
    assert "is_signature_from_type_hint: true" in described, "else MLflow would convert the pixels"
    assert """inputs: '[{"type": "any", "required": true}]'""" in described
    example = json.loads((saved / "serving_input_example.json").read_text(encoding="utf-8"))
    assert example == {"inputs": [IMAGE]}


def test_a_file_of_another_format_is_refused(onnx_file: Path, tmp_path: Path) -> None:
    foreign = onnx.load(onnx_file)
    foreign.metadata_props[0].value = "2"
    onnx.save(foreign, tmp_path / "model.onnx")
    with pytest.raises(MlflowException, match=r"has tenfold\.format 2; this code reads 1"):
        PixelModel().load_context(PythonModelContext({"onnx": str(tmp_path / "model.onnx")}, None))
