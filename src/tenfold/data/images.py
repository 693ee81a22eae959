"""Image files as arrays of pixels: one way for all that is trained on and asked about."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP")
"""What is read; the content of a file decides, not its name."""
MAX_PIXELS = 89_478_485
"""Of an image; a larger one is taken for a decompression bomb. Pillow's own limit."""
GREY = {"1", "L", "LA", "La", "I;16", "I;16B", "I;16L"}
"""Modes of images without colour."""
NOTES = {"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp", "transparency"}
"""Where Pillow puts what says how an image is to be turned, and which of its colours is transparent."""
NO_RANGE = {"I", "F"}
"""Modes whose values have no known range."""


warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # refused here, in our own words


class BadImageError(Exception):
    """A file is no readable image; the message says why."""


class Decoded(NamedTuple):
    """An image that was read."""

    pixels: NDArray[np.uint8]
    """[C, H, W]."""
    has_colour: bool
    """Whether the file has, whatever was made of it."""


def decode(content: bytes, size: tuple[int, int] | None, channels: int) -> Decoded:
    """Read the content of an image file.

    Turned upright as its EXIF data say; transparency over white; 16-bit grey scaled to 8 bits; the first frame if there
    are several. Resized (bilinear, antialiased) until it covers the target, and cut from the middle.

    Args:
        content: of the file.
        size: height and width of the result; None: its own.
        channels: 1 (grey) or 3 (RGB).

    Raises:
        BadImageError: it cannot be read.
    """
    mode = "L" if channels == 1 else "RGB"
    with _reading(BytesIO(content)) as image:
        has_colour = image.mode not in GREY  # `draft` may leave the colour out
        target = (size[1], size[0]) if size else image.size
        if size:  # a large JPEG is decoded at a fraction of its size; it may have to be turned
            image.draft(mode, (2 * max(target), 2 * max(target)))
        image.load()  # a PNG may have its EXIF data behind the pixels
        if image.mode == mode and image.size == target and not _has_notes(image):
            return Decoded(_pixels(image), has_colour)
        flat = _flatten(_upright(image)).convert(mode)
        fitted = ImageOps.fit(flat, target, Image.Resampling.BILINEAR) if size else flat
        return Decoded(_pixels(fitted), has_colour)


def decode_upright(content: bytes, longest: int) -> Image.Image:
    """Read the content of an image file, turned upright, with 8 bits, its colours and its transparency.

    Args:
        content: of the file.
        longest: pixels of its longer side, at most: a larger image is made smaller.

    Raises:
        BadImageError: it cannot be read.
    """
    with _reading(BytesIO(content)) as image:
        image.draft(None, (longest, longest))  # of a JPEG: at least so large
        image.load()
        eight = _eight_bits(_upright(image))
        plain = eight if eight.mode in {"L", "RGB"} else eight.convert("RGBA" if eight.has_transparency_data else "RGB")
        plain.thumbnail((longest, longest), Image.Resampling.BOX)
        return plain


def probe(file: str | Path | BytesIO) -> tuple[int, int, bool]:
    """Height and width of an image, and whether it has colour, from its header.

    Raises:
        BadImageError: it cannot be read.
    """
    with _reading(file) as image:
        return image.height, image.width, image.mode not in GREY


@contextmanager
def _reading(file: str | Path | BytesIO) -> Iterator[Image.Image]:
    """An opened image that is not too large; whatever goes wrong with it is a `BadImageError`."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            _check(image)
            yield image
    except BadImageError:
        raise
    except Exception as error:  # Pillow raises almost anything on damaged files
        raise BadImageError(_reason(error)) from None


def _check(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise BadImageError(f"is a decompression bomb: {image.width:,}×{image.height:,} pixels")
    if image.mode in NO_RANGE:
        raise BadImageError("has 32-bit values, of no known range")


def _upright(image: Image.Image) -> Image.Image:
    """The image as it is to be held; only one that may have to be turned is copied."""
    return ImageOps.exif_transpose(image) if _has_notes(image) else image


def _has_notes(image: Image.Image) -> bool:
    """Whether there may be an orientation (in EXIF or XMP data) or a transparent colour."""
    return image.format == "TIFF" or not NOTES.isdisjoint(image.info)


def _flatten(image: Image.Image) -> Image.Image:
    """The image without transparency, and with 8 bits."""
    image = _eight_bits(image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image


def _eight_bits(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    return image


def _pixels(image: Image.Image) -> NDArray[np.uint8]:
    pixels = np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, -1)
    return pixels.transpose(2, 0, 1)


def _reason(error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "is a decompression bomb"
    if isinstance(error, UnidentifiedImageError):
        return f"is no image ({', '.join(FORMATS)})"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    return f"is damaged ({error or type(error).__name__})"
