"""A registered model takes along the few files that it needs, so that it loads anywhere."""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tenfold.errors import TenfoldError

if TYPE_CHECKING:
    from mlflow.models import Model

PACKAGE = "tenfold_served"
"""Its own name, so that it is never taken for the project's, whose version may be another."""
ROOT = Path(__file__).parents[1]
MODEL = ROOT / "serving" / "model.py"
FILES = tuple(
    ROOT / name
    for name in (
        "data/images.py",
        "serving/classifier.py",
        "serving/handwriting.py",
        "serving/pictures.py",
        "serving/pixels.py",
        "serving/protocol.py",
    )
)
"""They import each other, and what is in `REQUIREMENTS`, nothing else."""
SOURCES = (*FILES, MODEL)
"""All code of a registered model."""
REQUIREMENTS = ("mlflow", "numpy", "onnxruntime", "pillow")
Loaded = tuple[Any, Callable[[Any, bytes, str | None], tuple[HTTPStatus, str]]]
"""A `Classifier`, and `protocol.respond`."""
PARAMS = {"top_k": 0, "return": "full"}
"""Of a request, with what holds where one is left out."""


def save(folder: Path, onnx: Path, image: npt.NDArray[np.uint8], model: Model | None = None) -> None:
    """Write an MLflow model.

    Args:
        folder: to make.
        onnx: the network's file.
        image: an example, uint8 [C, H, W].
        model: what MLflow knows of it already.
    """
    import mlflow.pyfunc

    with _code() as package, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*Any type hint")  # meant so: the model checks its input itself
        mlflow.pyfunc.save_model(
            folder,
            mlflow_model=model,
            python_model=str(MODEL),
            artifacts={"onnx": str(onnx.resolve())},
            code_paths=[str(package)],
            input_example=([(image[0] if len(image) == 1 else image).tolist()], PARAMS),
            pip_requirements=[f"{name}=={_public_version(name)}" for name in REQUIREMENTS],
        )


def _public_version(package: str) -> str:
    """The installed version without a local part (`+cpu`), which no package index knows."""
    return version(package).partition("+")[0]


@contextmanager
def _code() -> Iterator[Path]:
    """A folder with the package, which can be imported meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / PACKAGE
        for file in FILES:
            copy = package / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
            (copy.parent / "__init__.py").touch()
        (package / "__init__.py").touch()
        sys.path.insert(0, folder)
        try:
            yield package
        finally:
            sys.path.remove(folder)
            _forget()


def load(folder: Path) -> Loaded:
    """The classifier of a saved model, and `protocol.respond`, as they came with it; without MLflow.

    Raises:
        TenfoldError: it is no model of this project, or of one that is too old.
    """
    onnx, code = folder / "artifacts" / "model.onnx", folder / "code"
    if not onnx.is_file() or not (code / PACKAGE).is_dir():
        raise TenfoldError(
            f"{folder}: not a model that Tenfold serves (no {onnx.relative_to(folder)} with code/{PACKAGE} in it). One "
            "of an older version is registered anew by: dvc repro --force export"
        )
    _forget()
    sys.path.insert(0, str(code))
    try:
        classifier = importlib.import_module(f"{PACKAGE}.serving.classifier")
        protocol = importlib.import_module(f"{PACKAGE}.serving.protocol")
    finally:
        sys.path.remove(str(code))
    return classifier.Classifier(onnx), protocol.respond


def _forget() -> None:
    """Let the next import of the package take that of another model."""
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
