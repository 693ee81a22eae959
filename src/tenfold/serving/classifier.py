"""The served model itself: images in whatever form, answers out. It knows neither torch nor MLflow.

All that it knows of the model stands in the ONNX file (`modeling/onnx.py` writes it).
"""

from __future__ import annotations

import base64
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from . import pictures
from .handwriting import Handwriting
from .pixels import Refused, Shape, advise, from_npy, is_one_image, name, to_pixels

FORMATS = (1, 2)
"""Versions of the ONNX file's names and metadata that this file reads; the first says nothing of pictures."""
CHUNK = 64
"""Images that one thread takes at a time: their feature maps stay in its cache."""
MOST_BYTES = 1 << 23
"""Of pixels in one request: 10,699 images of MNIST."""
PARAMS = ("top_k", "return")
FORMS = ("full", "label", "seen")
"""What an answer may be: everything; the label alone; everything, and the picture that the network saw."""


class Classifier:
    """A network in ONNX Runtime, on the CPU; it may be asked from several threads at once."""

    def __init__(self, file: str | Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # requests and chunks are what runs side by side
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        notes = self._session.get_modelmeta().custom_metadata_map
        if (found := notes.get("tenfold.format")) not in map(str, FORMATS):
            raise ValueError(f"{file}: has tenfold.format {found}; this code reads {', '.join(map(str, FORMATS))}")
        self.classes: list[str] = json.loads(notes["tenfold.classes"])
        self.shape: Shape = tuple(json.loads(notes["tenfold.image_shape"]))
        way = json.loads(notes.get("tenfold.handwriting", "null"))
        self.handwriting = Handwriting(**way) if way else None
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(cores) if cores > 1 else None

    def answer(self, inputs: object, params: dict[str, Any] | None = None) -> list[Any]:
        """Classify images.

        Args:
            inputs: a list. An image is a list of H rows of W pixels (for C channels: C such planes), whole numbers from
                0 to 255, or a uint8 array of that shape; or a string, the base64 of a PNG, JPEG, WebP, BMP or TIFF
                file, or of a NumPy file of many images (`numpy.save` of uint8 [N, H, W]).
            params: `top_k`: only so many classes in `probabilities`, the most probable first; 0: all, by label.
                `return`: `full`; `label`, the label alone; `seen`, with the picture that the network saw.

        Returns:
            For each image its label (index of the class), if only that is asked for; else `label`, `name` (of the
            class), its `probability`, and `probabilities` by class name, rounded to 6 digits; with `seen`, that as
            base64 of a PNG file.

        Raises:
            Refused: the request is not as described; the message names the first place that is not, and why.
        """
        wanted = _check(params or {}, len(self.classes))
        return self._answer(self.pixels(inputs), *wanted)

    def answer_npy(self, content: bytes, params: dict[str, Any]) -> list[Any]:
        """Classify the images of a NumPy file: see `answer` and `from_npy`."""
        wanted = _check(params, len(self.classes))
        return self._answer(self._limited([from_npy(content, self.shape, 0)]), *wanted)

    def _answer(self, pixels: npt.NDArray[np.uint8], top_k: int, form: str) -> list[Any]:
        logits = self.logits(pixels)
        labels: list[int] = logits.argmax(axis=1).tolist()
        if form == "label":
            return labels
        powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        shares = (powers / powers.sum(axis=1, keepdims=True)).round(6)
        answers: list[dict[str, Any]] = [
            {
                "label": label,
                "name": self.classes[label],
                "probability": row[label],
                "probabilities": self._probabilities(row, top_k),
            }
            for label, row in zip(labels, shares.tolist(), strict=True)
        ]
        if form == "seen":
            for answer, image in zip(answers, pixels, strict=True):
                answer["seen"] = base64.b64encode(pictures.to_png(image)).decode()
        return answers

    def pixels(self, inputs: object) -> npt.NDArray[np.uint8]:
        """The images of a request: uint8 [N, C, H, W].

        Raises:
            Refused: see `answer`.
        """
        if not isinstance(inputs, list) or not inputs:
            raise Refused(f"inputs is {name(inputs)}, not a list of images. {advise(self.shape)}")
        self._limit(len(inputs))
        if not any(isinstance(image, str) for image in inputs):
            if is_one_image(inputs, self.shape):
                raise Refused(f"inputs is one image, not a list of images: send [image]. {advise(self.shape)}")
            return to_pixels(inputs, self.shape)
        budget, parts = pictures.Budget(), []
        for number, image in enumerate(inputs):
            if isinstance(image, str):
                parts.append(pictures.read(image, self.shape, self.handwriting, number, budget))
            else:
                parts.append(to_pixels([image], self.shape, number))
        return self._limited(parts)

    def _limited(self, parts: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
        self._limit(sum(map(len, parts)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _limit(self, images: int) -> None:
        if images > (most := max(1, MOST_BYTES // math.prod(self.shape))):
            raise Refused(f"inputs has {images:,} images; at most {most:,} are taken at once: send fewer")

    def logits(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """What the network says of images uint8 [N, C, H, W]: float32 [N, K]."""
        if len(pixels) <= CHUNK or self._pool is None:
            return self._run(pixels)
        chunks = [pixels[start : start + CHUNK] for start in range(0, len(pixels), CHUNK)]
        return np.concatenate(list(self._pool.map(self._run, chunks)))

    def _run(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        logits: npt.NDArray[np.float32] = self._session.run(["logits"], {"images": pixels})[0]
        return logits

    def _probabilities(self, row: list[float], top_k: int) -> dict[str, float]:
        if not top_k:
            return dict(zip(self.classes, row, strict=True))
        best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:top_k]
        return {self.classes[label]: row[label] for label in best}


def _check(params: dict[str, Any], classes: int) -> tuple[int, str]:
    """`top_k` and `return` of a request."""
    top_k, form = params.get("top_k", 0), params.get("return", FORMS[0])
    if unknown := sorted(set(params).difference(PARAMS)):
        raise Refused(f"params has {unknown[0]!r:.50}, which is unknown; there are {', '.join(PARAMS)}")
    if type(top_k) is not int or not 0 <= top_k <= classes:
        raise Refused(f"params.top_k is {name(top_k)}, not a whole number from 0 (all) to {classes}")
    if form not in FORMS:
        raise Refused(f"params.return is {form!r:.50}, not one of {', '.join(FORMS)}")
    return top_k, form
