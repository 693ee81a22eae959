"""Image files as the pixels that a network was trained on."""

from __future__ import annotations

import base64
import binascii
import io
import threading
from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..data import images
from .handwriting import Handwriting, write_like
from .pixels import Refused, Shape, from_npy

MOST_PIXELS = 50_000_000
"""Of image files in one request, as they are."""
LONGEST = 512
"""Pixels of the longer side at which handwriting is looked at."""
LARGE = 2_000_000
"""Pixels from which pictures are decoded one at a time, whichever requests they are in: each takes hundreds of MB."""
_one_at_a_time = threading.Lock()
NPY = b"\x93NUMPY"


class Budget:
    """Pixels of files that one request may still have decoded: a small file may hold very many."""

    def __init__(self) -> None:
        self.left = MOST_PIXELS

    def take(self, content: bytes) -> int:
        """Pay for an image; its pixels.

        Raises:
            images.BadImageError: there is no more, or it is no image.
        """
        height, width, _ = images.probe(io.BytesIO(content))
        self.left -= height * width
        if self.left < 0:
            raise images.BadImageError(
                f"is too large, or comes after others that are: at most {MOST_PIXELS:,} pixels are decoded at once"
            )
        return height * width


def read(text: str, shape: Shape, way: Handwriting | None, number: int, budget: Budget) -> npt.NDArray[np.uint8]:
    """A file as a request holds it.

    Args:
        text: base64 of a PNG, JPEG, WebP, BMP or TIFF file, or of a NumPy file with many images; a data URL is taken
            as well.
        shape: C, H, W of the model's images.
        way: how handwriting is made like that of the training images; None: resized and cut, as folders are.
        number: its place in the request.
        budget: of the request.

    Returns:
        uint8 [N, C, H, W].

    Raises:
        Refused: it is no base64, no image, damaged, too large, or shows nothing.
    """
    try:
        content = base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(f"inputs[{number}] is a string, but no base64 of an image file") from None
    if content.startswith(NPY):
        return from_npy(content, shape, number)
    try:
        pixels = budget.take(content)
        with _one_at_a_time if pixels > LARGE else nullcontext():
            if way is None:
                return images.decode(content, shape[1:], shape[0]).pixels[None]
            return write_like(images.decode_upright(content, LONGEST), shape, way)[None]
    except images.BadImageError as error:
        raise Refused(f"inputs[{number}] {error}. Send the base64 of a PNG, JPEG or WebP file") from None


def to_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """An image uint8 [C, H, W] as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()
