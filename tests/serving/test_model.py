"""The served model inside one process: what it answers, and where it loads."""

import ast
import base64
import io
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
from PIL import Image

from tenfold.errors import TenfoldError
from tenfold.serving import packaging
from tenfold.serving.classifier import CHUNK, Classifier
from tenfold.serving.pixels import Refused

Check = Callable[[list[dict[str, Any]], int], None]


@pytest.fixture(scope="module")
def served(saved: Path) -> PyFuncModel:
    return load_model(str(saved))


@pytest.mark.parametrize("count", [1, 7, 256])
def test_answers_are_those_of_onnx_runtime(
    served: PyFuncModel, images: npt.NDArray[np.uint8], check: Check, count: int
) -> None:
    check(served.predict(images[:count, 0].tolist()), count)


def test_chunks_come_back_in_order(classifier: Classifier, images: npt.NDArray[np.uint8], check: Check) -> None:
    count = 3 * CHUNK + 1
    check(classifier.answer(list(images[:count])), count)


def test_numbers_files_and_numpy_files_in_one_request(
    classifier: Classifier, images: npt.NDArray[np.uint8], check: Check
) -> None:
    array = io.BytesIO()
    np.save(array, images[1:4, 0])
    encoded = base64.b64encode(array.getvalue()).decode()
    check(classifier.answer([images[0, 0].tolist(), encoded, images[4, 0]]), 5)
    check(classifier.answer([images[0], encoded]), 4)
    assert classifier.answer_npy(array.getvalue(), {}) == classifier.answer([encoded])


def test_params(served: PyFuncModel, images: npt.NDArray[np.uint8]) -> None:
    inputs = images[:3, 0].tolist()
    full: Any = served.predict(inputs)
    assert served.predict(inputs, {"return": "label"}) == [answer["label"] for answer in full]
    best: Any = served.predict(inputs, {"top_k": 2})
    for answer, whole in zip(best, full, strict=True):
        ranked = sorted(whole["probabilities"].items(), key=lambda item: -item[1])[:2]
        assert list(answer["probabilities"].items()) == ranked
        assert answer["probability"] == whole["probability"]
    seen: Any = served.predict(inputs, {"return": "seen"})
    for answer, image in zip(seen, images, strict=False):
        picture = Image.open(io.BytesIO(base64.b64decode(answer["seen"])))
        np.testing.assert_array_equal(np.asarray(picture), image[0])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"top_k": 11}, "params.top_k is 11, not a whole number from 0"),
        ({"top_k": -1}, "params.top_k is -1"),
        ({"top_k": True}, "params.top_k is a boolean"),
        ({"top_k": "3"}, "params.top_k is a string"),
        ({"return": "everything"}, "params.return is 'everything', not one of full, label, seen"),
        ({"top_n": 3}, "params has 'top_n', which is unknown; there are top_k, return"),
    ],
)
def test_params_that_are_refused(
    classifier: Classifier, images: npt.NDArray[np.uint8], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        classifier.answer(list(images[:1]), params)


def test_a_refused_request_is_an_error_of_mlflow(served: PyFuncModel) -> None:
    with pytest.raises(MlflowException, match=r"inputs\[0\] is 3, not 28x28") as caught:
        served.predict([[0, 0, 0]])
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"


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


def test_it_imports_what_it_requires_and_no_more(saved: Path) -> None:
    imported = set()
    for file in packaging.SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add((node.module or "").partition(".")[0])
    assert imported - sys.stdlib_module_names == {"mlflow", "numpy", "onnxruntime", "PIL", packaging.PACKAGE}
    required = (saved / "requirements.txt").read_text(encoding="utf-8").split()
    assert {line.partition("==")[0] for line in required} == {"mlflow", "numpy", "onnxruntime", "pillow"}


def test_signature_and_example(saved: Path) -> None:
    described = (saved / "MLmodel").read_text(encoding="utf-8")
    assert "is_signature_from_type_hint: true" in described, "else MLflow would convert the pixels"
    assert """inputs: '[{"type": "any", "required": true}]'""" in described
    assert '"name": "top_k", "default": 0' in described
    example = json.loads((saved / "serving_input_example.json").read_text(encoding="utf-8"))
    assert example == {"inputs": [[[0] * 28] * 28], "params": {"top_k": 0, "return": "full"}}


def test_it_is_loaded_without_mlflow_with_the_code_that_came_with_it(
    saved: Path, images: npt.NDArray[np.uint8], check: Check
) -> None:
    classifier, respond = packaging.load(saved)
    assert Path(sys.modules[type(classifier).__module__].__file__ or "").is_relative_to(saved)
    status, body = respond(classifier, json.dumps({"inputs": images[:2, 0].tolist()}).encode(), "application/json")
    assert status == 200
    check(json.loads(body)["predictions"], 2)


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TenfoldError, match="not a model that Tenfold serves"):
        packaging.load(tmp_path)


def test_a_file_of_another_format_is_refused(onnx_file: Path, tmp_path: Path) -> None:
    foreign = onnx.load(onnx_file)
    foreign.metadata_props[0].value = "3"
    onnx.save(foreign, tmp_path / "model.onnx")
    with pytest.raises(ValueError, match=r"has tenfold\.format 3; this code reads 1, 2"):
        Classifier(tmp_path / "model.onnx")
