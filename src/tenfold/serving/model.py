"""The served model: pixels in, labels with probabilities out.

An MLflow model from code: MLflow copies this file into the model's folder and runs it there. It must load
anywhere, so it imports neither torch nor this project: all that it knows of the model stands in the ONNX file
(`modeling/onnx.py` writes it).
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any, TypeGuard

import mlflow.models
import numpy as np
import numpy.typing as npt
import onnxruntime
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext

FORMAT = 1
"""Version of the ONNX file's names and metadata that this file reads."""

NAMES = {"dict": "an object", "list": "a list", "str": "a string", "bool": "a boolean", "NoneType": "null"}


class Refused(MlflowException):
    """A request that cannot be answered: HTTP 400 with a short message."""

    def __init__(self, message: str) -> None:
        super().__init__(message, error_code=INVALID_PARAMETER_VALUE)
        self.reason = message

    def serialize_as_json(self) -> str:
        """The body of the answer, without the request that MLflow's server puts before each message."""
        self.message = self.reason
        body: str = super().serialize_as_json()
        return body


class PixelModel(PythonModel):
    """Answers with ONNX Runtime on the CPU; one session serves all threads of the server."""

    # MLflow would check only that the input is a list, and answer with the whole request if not.
    _skip_type_hint_validation = True

    def load_context(self, context: PythonModelContext) -> None:
        """Open the artifact `onnx`."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = _cores()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads sleep
        self.session = onnxruntime.InferenceSession(
            context.artifacts["onnx"], options, providers=["CPUExecutionProvider"]
        )
        notes = self.session.get_modelmeta().custom_metadata_map
        if (found := notes.get("tenfold.format")) != str(FORMAT):
            raise MlflowException(f"the artifact 'onnx' has tenfold.format {found}; this code reads {FORMAT}")
        self.classes: list[str] = json.loads(notes["tenfold.classes"])
        self.shape: tuple[int, int, int] = tuple(json.loads(notes["tenfold.image_shape"]))

    def predict(  # type: ignore[override]  # MLflow allows leaving out `context`
        self, model_input: list[Any], params: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Classify images.

        Args:
            model_input: images, each a list of H rows of W pixels (for C channels: C such planes), whole
                numbers from 0 to 255. From Python, uint8 arrays of that shape as well.
            params: none are known yet.

        Returns:
            For each image `label` (index of the class), `name` (of the class), its `probability`, and
            `probabilities` by class name, in the order of the labels; rounded to 6 digits.

        Raises:
            Refused: the images are not as described; the message names the first that is not, and why.
        """
        pixels = to_pixels(model_input, self.shape)
        (logits,) = self.session.run(["logits"], {"images": pixels})
        powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        shares = (powers / powers.sum(axis=1, keepdims=True)).round(6)
        return [
            {
                "label": label,
                "name": self.classes[label],
                "probability": row[label],
                "probabilities": dict(zip(self.classes, row, strict=True)),
            }
            for label, row in zip(logits.argmax(axis=1).tolist(), shares.tolist(), strict=True)
        ]

    predict._is_pyfunc = True  # type: ignore[attr-defined]  # "checks its input": else MLflow warns when it saves


def to_pixels(images: object, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """Images as they come out of JSON to one array.

    Args:
        images: a list of images, as `PixelModel.predict` describes them.
        shape: C, H, W of the model's images.

    Returns:
        uint8 [N, C, H, W].

    Raises:
        Refused: anything that is not exactly that.
    """
    channels, height, width = shape
    wanted = shape if channels > 1 else (height, width)
    planes = f"{channels} planes of " if channels > 1 else ""
    advice = (
        f'Send {{"inputs": [image, ...]}}, each image {planes}{height} rows of {width} whole numbers '
        "from 0 to 255, not scaled"
    )
    if not isinstance(images, list) or not images:
        raise Refused(f"inputs is {_name(images)}, not a list of images. {advice}")
    array = _array(images)
    if array.shape == wanted and not _holds_lists(array):
        raise Refused(f"inputs is one image, not a list of images: send [image]. {advice}")
    if array.shape[1:] not in (wanted, shape):
        for number, image in enumerate(images):
            if (found := _array(image)).shape not in (wanted, shape):
                raise Refused(f"inputs[{number}] is {_describe(image, found)}, not {_by(wanted)}. {advice}")
        raise Refused(f"some images are {_by(wanted)}, some {_by(shape)}. {advice}")
    flat = array.ravel().tolist()
    pixels = _whole(flat)
    if pixels is None:
        at = next(at for at, value in enumerate(flat) if not _is_pixel(value))
        position = np.unravel_index(at, array.shape)
        place = "".join(f"[{index}]" for index in position)
        raise Refused(f"inputs{place} is {_name(flat[at])}, not a pixel. {advice}")
    pixels = pixels.reshape(-1, *shape)
    scaled = np.flatnonzero(pixels.max(axis=(1, 2, 3)) == 1)
    if scaled.size:  # either reading gives an answer, and one of them is wrong
        raise Refused(f"inputs[{scaled[0]}] holds only 0 and 1, as if 1 were white: white is 255. {advice}")
    return pixels


def _array(nested: object) -> npt.NDArray[np.object_]:
    """As many dimensions as are regular; what is below them stays as it is."""
    try:
        return np.array(nested, dtype=object)
    except ValueError:  # numpy arrays of different shapes
        return np.array(None)


def _whole(values: list[Any]) -> npt.NDArray[np.uint8] | None:
    """The values as uint8, or None when one is no pixel (types are looked at: numpy takes `True` for 1)."""
    kinds = set(map(type, values))
    with suppress(ValueError, OverflowError), np.errstate(invalid="ignore"):
        if kinds == {int}:
            return np.frombuffer(bytes(values), dtype=np.uint8)  # several times faster than numpy, and checks
        if kinds <= {int, float}:
            numbers = np.array(values, dtype=np.float64)
            pixels = numbers.astype(np.uint8)
            if (pixels == numbers).all():
                return pixels
    return None


def _is_number(value: object) -> TypeGuard[int | float]:
    return type(value) in (int, float)  # no bool


def _is_pixel(value: object) -> bool:
    return _is_number(value) and 0 <= value <= 255 and value == int(value)


def _name(value: object) -> str:
    """What a value is, in JSON's words and in few characters."""
    if isinstance(value, list) and not value:
        return "an empty list"
    if _is_number(value):
        return f"{value!r:.30}"
    return NAMES.get(type(value).__name__, type(value).__name__)


def _describe(image: object, array: npt.NDArray[np.object_]) -> str:
    if array.ndim == 0 or array.size == 0:
        return _name(image)
    if _holds_lists(array):
        return "rows of unequal length"
    return _by(array.shape)


def _holds_lists(array: npt.NDArray[np.object_]) -> bool:
    return any(isinstance(part, list) for part in array.ravel().tolist())


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


mlflow.models.set_model(PixelModel())
