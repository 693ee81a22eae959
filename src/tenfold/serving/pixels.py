"""Images as numbers, as they come out of JSON or of a NumPy file, to one array; whatever is no pixel is refused."""

from __future__ import annotations

import io
import math
from contextlib import suppress
from tokenize import TokenError
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

NAMES = {"dict": "an object", "list": "a list", "str": "a string", "bool": "a boolean", "NoneType": "null"}
Shape = tuple[int, int, int]
"""C, H, W."""


class Refused(Exception):  # noqa: N818
    """A request that cannot be answered; the message says which image or pixel it is, why, and what is expected."""


def to_pixels(images: list[Any], shape: Shape, first: int = 0) -> npt.NDArray[np.uint8]:
    """Images as lists of numbers to one array.

    Args:
        images: each a list of H rows of W pixels (for C channels: C such planes), whole numbers from 0 to 255; or
            uint8 arrays of that shape.
        shape: C, H, W of the model's images.
        first: the place of the first image in the request.

    Returns:
        uint8 [N, C, H, W].

    Raises:
        Refused: anything that is not exactly that.
    """
    wanted = shape if shape[0] > 1 else shape[1:]
    advice = advise(shape)
    array = _array(images)
    if array.shape[1:] not in (wanted, shape):
        for number, image in enumerate(images, first):
            if (found := _array(image)).shape not in (wanted, shape):
                raise Refused(f"inputs[{number}] is {_describe(image, found)}, not {_by(wanted)}. {advice}")
        raise Refused(f"some images are {_by(wanted)}, some {_by(shape)}. {advice}")
    flat = array.ravel().tolist()
    pixels = _whole(flat)
    if pixels is None:
        at = next(at for at, value in enumerate(flat) if not _is_pixel(value))
        number, *place = (int(index) for index in np.unravel_index(at, array.shape))
        brackets = "".join(f"[{index}]" for index in (number + first, *place))
        raise Refused(f"inputs{brackets} is {name(flat[at])}, not a pixel. {advice}")
    return _not_scaled(pixels.reshape(-1, *shape), shape, first)


def from_npy(content: bytes, shape: Shape, number: int) -> npt.NDArray[np.uint8]:
    """The images of a NumPy file (`numpy.save`): uint8, [N, H, W] or [N, C, H, W].

    Args:
        content: of the file.
        shape: C, H, W of the model's images.
        number: the file's place in the request.

    Returns:
        uint8 [N, C, H, W].

    Raises:
        Refused: it is damaged or holds something else.
    """
    wanted = shape if shape[0] > 1 else shape[1:]
    advice = f"Save an array uint8 [N, {', '.join(map(str, wanted))}], not scaled"
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        size, column_major, dtype = read_header[version](file)
    except (ValueError, KeyError, TypeError, EOFError, SyntaxError, TokenError, MemoryError, RecursionError) as error:
        raise Refused(f"inputs[{number}] is a damaged NumPy file ({error!s:.80}). {advice}") from None
    if dtype != np.uint8 or size[1:] not in (wanted, shape) or any(type(side) is not int or side < 1 for side in size):
        raise Refused(f"inputs[{number}] is a NumPy file of {dtype!s:.40} {_by(size):.40}. {advice}")
    found, expected = len(content) - file.tell(), math.prod(size)
    if found != expected:
        amount = "few" if found < expected else "many"
        raise Refused(
            f"inputs[{number}] is a damaged NumPy file ({found:,} bytes are too {amount} for {_by(size):.40}). {advice}"
        )
    flat = np.frombuffer(content, np.uint8, offset=file.tell())
    return _not_scaled(flat.reshape(size, order="F" if column_major else "C").reshape(-1, *shape), shape, number)


def advise(shape: Shape) -> str:
    """What a request of numbers looks like."""
    channels, height, width = shape
    planes = f"{channels} planes of " if channels > 1 else ""
    return (
        f'Send {{"inputs": [image, ...]}}, each image {planes}{height} rows of {width} whole numbers from 0 to 255, '
        "not scaled, or a string: the base64 of an image file"
    )


def name(value: object) -> str:
    """What a value is, in JSON's words and in few characters."""
    if isinstance(value, list) and not value:
        return "an empty list"
    if _is_number(value):
        return f"{value!r:.30}"
    return NAMES.get(type(value).__name__, type(value).__name__)


def is_one_image(images: list[Any], shape: Shape) -> bool:
    """Whether the list is an image itself, where a list of images is expected."""
    array = _array(images)
    return array.shape == (shape if shape[0] > 1 else shape[1:]) and not _holds_lists(array)


def _not_scaled(pixels: npt.NDArray[np.uint8], shape: Shape, first: int) -> npt.NDArray[np.uint8]:
    """The same pixels, if no image looks as if 1 were white: one of the two readings is wrong."""
    scaled = np.flatnonzero(pixels.reshape(len(pixels), -1).max(axis=1) == 1)
    if scaled.size:
        place = first + int(scaled[0])
        raise Refused(f"inputs[{place}] holds only 0 and 1, as if 1 were white: white is 255. {advise(shape)}")
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


def _describe(image: object, array: npt.NDArray[np.object_]) -> str:
    if array.ndim == 0 or array.size == 0:
        return name(image)
    if _holds_lists(array):
        return "rows of unequal length"
    return _by(array.shape)


def _holds_lists(array: npt.NDArray[np.object_]) -> bool:
    return any(isinstance(part, list) for part in array.ravel().tolist())


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
