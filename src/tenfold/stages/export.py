"""Write the best network as ONNX, hold the file against it, register the model and choose the champion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tenfold import paths
from tenfold.datasets import DATASETS
from tenfold.errors import TenfoldError
from tenfold.modeling import checkpoint, onnx
from tenfold.params import Params
from tenfold.tracking import records, registry, sync

TEST_IMAGES = paths.SPLIT / "test" / "images.npy"


def run(params: Params) -> None:
    """Write `models/model.onnx`; log and register the model on the run of its training; move the alias.

    Raises:
        TenfoldError: the checkpoint or the test set is missing or unfit, or the file answers differently.
    """
    network, spec = checkpoint.load_network(paths.BEST_CHECKPOINT)
    images = _test_images((spec.channels, *spec.image_size))
    known = DATASETS.get(params.data.dataset)  # a folder of one's own is none
    with paths.writing(paths.ONNX_MODEL) as file:
        onnx.export(network, spec, file, params.export.opset, known.handwriting if known else None)
        compared = onnx.compare(network, file, images)
        compared.check()
    print(
        f"export: {paths.ONNX_MODEL} answers as the network for all {compared.images:,} test images; "
        f"logits differ by up to {compared.max_difference:.1e}"
    )
    version = records.record_model(sync.run_of(Path()), Path(), params)
    registry.promote(version, params.export)


def _test_images(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    try:
        images: npt.NDArray[np.uint8] = np.load(TEST_IMAGES, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise TenfoldError(f"{TEST_IMAGES}: cannot be read ({error}). Make it: dvc repro split") from None
    if images.shape[1:] != shape or images.dtype != np.uint8:
        raise TenfoldError(
            f"{TEST_IMAGES}: holds {images.dtype} images {images.shape[1:]}, but {paths.BEST_CHECKPOINT} was "
            f"trained on uint8 images {shape}. Train on these: dvc repro"
        )
    return images
