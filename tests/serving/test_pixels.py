"""Images as numbers: what is taken, what is refused."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tenfold.serving.classifier import Classifier
from tenfold.serving.pixels import Refused, from_npy, to_pixels

GREY, COLOUR = (1, 28, 28), (3, 4, 5)
IMAGE: list[list[Any]] = [[0] * 28 for _ in range(28)]


def with_pixel(value: object) -> list[Any]:
    """Two black images, the second with `value` in row 5, column 7."""
    image = [row.copy() for row in IMAGE]
    image[5][7] = value
    return [IMAGE, image]


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
    with pytest.raises(Refused, match=r"inputs\[0\] is 4x5, not 3x4x5.*3 planes of 4 rows of 5 whole numbers"):
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
    "a word": (["seven"], r"inputs\[0\] is a string, but no base64 of an image file"),
    "null image": ([IMAGE, None], r"inputs\[1\] is null, not 28x28"),
    "object image": ([{"pixels": IMAGE}], r"inputs\[0\] is an object, not 28x28"),
    "an object": ({"images": [IMAGE]}, "inputs is an object, not a list of images"),
    "a string": ("7", "inputs is a string, not a list of images"),
    "too many": ([IMAGE] * 10_700, "inputs has 10,700 images; at most 10,699 are taken at once"),
    "nothing": (None, "inputs is null, not a list of images"),
}


@pytest.mark.parametrize(("sent", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(classifier: Classifier, sent: object, message: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        classifier.answer(sent)
    assert len(str(caught.value)) < 300


def npy(array: npt.NDArray[Any], **options: Any) -> bytes:
    """An array as a NumPy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_numpy_files(images: npt.NDArray[np.uint8], version: tuple[int, int]) -> None:
    for array in (images[:5], images[:5, 0], np.asfortranarray(images[:5, 0])):
        np.testing.assert_array_equal(from_npy(npy(array, version=version), GREY, 0), images[:5])


@pytest.mark.parametrize(
    ("content", "message"),
    {
        "floats": (npy(np.zeros((2, 28, 28))), "is a NumPy file of float64 2x28x28"),
        "objects": (npy(np.array([{}] * 3)), "is a NumPy file of object 3"),
        "one image": (npy(np.zeros((28, 28), np.uint8)), "is a NumPy file of uint8 28x28"),
        "another size": (npy(np.zeros((2, 27, 28), np.uint8)), "is a NumPy file of uint8 2x27x28"),
        "no image": (npy(np.zeros((0, 28, 28), np.uint8)), "is a NumPy file of uint8 0x28x28"),
        "zeros and ones": (npy(np.ones((1, 28, 28), np.uint8)), r"inputs\[4\] holds only 0 and 1"),
        "cut short": (npy(np.zeros((2, 28, 28), np.uint8))[:-1], "is a damaged NumPy file"),
        "a size beyond all numbers": (
            npy(np.zeros((2, 28, 28), np.uint8)).replace(
                b"(2, 28, 28), }" + b" " * 40, b"(1" + b"0" * 39 + b", 28, 28), }"
            ),
            "is a damaged NumPy file",
        ),
        "only the start": (b"\x93NUMPY", "is a damaged NumPy file"),
        "a size that is no number": (
            npy(np.zeros((2, 28, 28), np.uint8)).replace(b"(2, 28, 28), }  ", b"(True, 28, 28)}"),
            "inputs.4. is a ",
        ),
        "brackets": (b"\x93NUMPY\x01\x00\x00\x10" + b"(" * 4096, "is a damaged NumPy file"),
        "an open string": (b"\x93NUMPY\x01\x00\x0b\x00{'descr': '", "is a damaged NumPy file"),
        "many fields": (npy(np.zeros(1, ",".join(["u1"] * 300))), "is a NumPy file of"),
        "a size that is a lie": (
            npy(np.zeros((2, 28, 28), np.uint8))
            .replace(b"(2, 28", b"(9999999999, 28")
            .replace(b" " * 10 + b"\n", b"\n"),
            "is a damaged NumPy file",
        ),
    }.values(),
)
def test_numpy_files_that_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        from_npy(content, GREY, 4)
    assert len(str(caught.value)) < 250
