"""A network as an ONNX file, and the proof that the file answers as the network does."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from google.protobuf.message import Message  # type: ignore[import-untyped]
from torch import nn

from tenfold.datasets import Handwriting
from tenfold.errors import TenfoldError
from tenfold.modeling.networks import NetworkSpec

TOLERANCE = 1e-4
"""Largest difference between a logit of the file and of the network."""

FORMAT = 2
"""Version of what the file promises: names and types of input and output, and the keys of the metadata."""


def export(
    network: nn.Module, spec: NetworkSpec, path: Path, opset: int, handwriting: Handwriting | None = None
) -> None:
    """Write `network` as one ONNX file.

    Input `images`: uint8 [N, C, H, W], any N; output `logits`: float32 [N, K]. The metadata `tenfold.format`,
    `tenfold.classes`, `tenfold.image_shape` and `tenfold.handwriting` (JSON) tell a reader the rest; the last says how
    pictures of characters are made like the training images, null: they are resized. The same weights give the same
    bytes in any process and folder.

    Raises:
        TenfoldError: the network cannot be expressed in ONNX, or not in this operator set.
    """
    shape = [spec.channels, *spec.image_size]
    example = torch.zeros(2, *shape, dtype=torch.uint8)  # two: torch.export takes a size of 1 for a constant
    try:
        program = torch.onnx.export(
            copy.deepcopy(network).cpu().eval(),
            (example,),
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("N")},),
            opset_version=opset,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        raise TenfoldError(f"the network {spec.network!r} cannot be written as ONNX: {_cause(error)}") from error
    assert program is not None  # it is None only where the exporter writes the file itself
    model = program.model_proto
    _strip(model)
    written = next(entry.version for entry in model.opset_import if not entry.domain)
    if written != opset:
        raise TenfoldError(
            f"export.opset: {opset} cannot express the network {spec.network!r}; the exporter fell back to "
            f"{written}. Set it to {written}"
        )
    model.producer_version = model.producer_version.split("+")[0]  # the build (+cpu, +cu130) shapes nothing
    notes = {
        "format": FORMAT,
        "classes": list(spec.classes),
        "image_shape": shape,
        "handwriting": asdict(handwriting) if handwriting else None,
    }
    for key, value in notes.items():
        model.metadata_props.add(key=f"tenfold.{key}", value=json.dumps(value, ensure_ascii=False))
    path.write_bytes(model.SerializeToString(deterministic=True))


@dataclass(frozen=True)
class Comparison:
    """How an ONNX file answers beside its network.

    Attributes:
        images: number of images compared.
        different: number of images to which another class was given. Equal best logits count as the lower
            class on both sides. There is no tolerance for near-ties: two classes that lie closer than the
            rounding may come out in another order, and then count as different.
        max_difference: largest absolute difference of two logits; NaN if a logit is.
    """

    images: int
    different: int
    max_difference: float

    def check(self) -> None:
        """Accept the same predictions and logits within `TOLERANCE`, nothing less.

        Raises:
            TenfoldError: the file does not answer as its network does.
        """
        if self.different or not self.max_difference <= TOLERANCE:
            raise TenfoldError(
                f"the ONNX file does not answer as its network does: {self.different} of {self.images} "
                f"predictions differ, logits by up to {self.max_difference:.2g} (allowed: {TOLERANCE:g}). "
                "Try another export.opset. If the logits agree, two classes tie for them: train longer"
            )


def compare(network: nn.Module, path: Path, images: npt.NDArray[np.uint8], batch_size: int = 250) -> Comparison:
    """Run the network in torch and its file in ONNX Runtime over all `images` (uint8 [N, C, H, W])."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # torch wants the cores as well
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    # Channels last: the same sums, several times faster on a CPU.
    network = copy.deepcopy(network).cpu().eval().to(memory_format=torch.channels_last)
    different, differences = 0, [0.0]
    with torch.inference_mode():
        for start in range(0, len(images), batch_size):
            batch = np.array(images[start : start + batch_size])  # a copy, since torch wants a writable array
            expected = network(torch.tensor(batch).to(memory_format=torch.channels_last)).numpy()
            (found,) = session.run(["logits"], {"images": batch})
            different += int((expected.argmax(1) != found.argmax(1)).sum())
            differences.append(float(np.abs(expected - found).max()))
    return Comparison(len(images), different, float(np.max(differences)))


def _strip(message: Message) -> None:
    """Remove the exporter's notes, at every depth: stack traces with paths, source, torch's graph."""
    for field, value in message.ListFields():
        if field.name in {"doc_string", "metadata_props"}:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                _strip(part)


def _cause(error: BaseException) -> str:
    """What went wrong, in one line, from under the layers of advice that the exporter wraps it in."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
