"""Pictures of digits, made like the data set's own."""

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageDraw

from tenfold.serving import pictures
from tenfold.serving.classifier import Classifier
from tenfold.serving.handwriting import Handwriting
from tenfold.serving.pixels import Refused, Shape

SHAPE = (1, 28, 28)
MNIST = Handwriting(20, by_mass=True)
Pixels = npt.NDArray[np.uint8]


def drawn(size: int = 280, width: int = 24) -> Image.Image:
    """A 5, white on black, not in the middle."""
    image = Image.new("L", (size, size))
    points = [(0.6, 0.2), (0.3, 0.2), (0.28, 0.42), (0.5, 0.42), (0.6, 0.55), (0.55, 0.7), (0.3, 0.72)]
    ImageDraw.Draw(image).line([(x * size, y * size) for x, y in points], 255, width, joint="curve")
    return image


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> str:
    """The base64 of a file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return base64.b64encode(file.getvalue()).decode()


def read(text: str, shape: Shape = SHAPE, way: Handwriting | None = MNIST) -> Pixels:
    """A file of a request that has only this one."""
    return pictures.read(text, shape, way, 0, pictures.Budget())


def seen(image: Image.Image, form: str = "PNG") -> Pixels:
    """What becomes of a picture, [28, 28]."""
    found: Pixels = read(encoded(image, form))[0, 0]
    return found


def inverted(image: Image.Image) -> Image.Image:
    return Image.eval(image, lambda value: 255 - value)


def on_paper(image: Image.Image) -> Image.Image:
    """Photographed: small on a large sheet, with light from one side, and noise."""
    height, width = 420, 300
    sheet = np.zeros((height, width))
    sheet[200:300, 150:250] = np.asarray(image.resize((100, 100))) / 255
    light = 210 - 70 * np.linspace(0, 1, height)[:, None] - 50 * np.linspace(0, 1, width)
    noise = np.random.default_rng(0).normal(0, 4, sheet.shape)
    return Image.fromarray((light * (1 - 0.7 * sheet) + noise).clip(0, 255).astype(np.uint8))


def in_colour(image: Image.Image) -> Image.Image:
    """Red on a green that is as light."""
    return Image.composite(
        Image.new("RGB", image.size, (200, 60, 60)), Image.new("RGB", image.size, (40, 130, 50)), image
    )


def transparent(image: Image.Image, grey: int) -> Image.Image:
    """Strokes of one grey on nothing."""
    result = Image.new("LA", image.size, (grey, 0))
    result.putalpha(image)
    return result


def framed(image: Image.Image) -> Image.Image:
    """In a black frame, beside the dark edge of a table, with dust."""
    sheet = np.full((400, 400), 215.0)
    sheet[150:300, 120:270] -= 170 * (np.asarray(image.resize((150, 150))) / 255)
    sheet[40:46, 60:66] = 40
    sheet[360:] = 60
    sheet[:3] = sheet[-3:] = sheet[:, :3] = sheet[:, -3:] = 0
    return Image.fromarray(sheet.clip(0, 255).astype(np.uint8))


WAYS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "dark on light": inverted,
    "large": lambda image: image.resize((2000, 2000)),
    "small": lambda image: image.resize((56, 56), Image.Resampling.BOX),
    "elsewhere": lambda image: image.transform(image.size, Image.Transform.AFFINE, (1, 0, 40, 0, 1, -50)),
    "faint": lambda image: image.point(lambda value: 120 + value // 5),
    "on paper": on_paper,
    "framed": framed,
    "28x28, in a corner": lambda image: image.resize((18, 18), Image.Resampling.BOX).crop((0, 0, 28, 28)),
    "28x28, dim": lambda image: image.resize((28, 28), Image.Resampling.BOX).point(lambda value: value // 4),
    "in colour": in_colour,
    "black on nothing": lambda image: transparent(image, 0),
    "white on nothing": lambda image: transparent(image, 255),
    "palette": lambda image: image.convert("P"),
    "1 bit": lambda image: image.convert("1"),
    "16 bits": lambda image: Image.fromarray(np.asarray(image).astype(np.uint16) * 257),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_same_digit_however_it_is_pictured(way: Callable[[Image.Image], Image.Image]) -> None:
    expected, found = seen(drawn()).astype(int), seen(way(drawn())).astype(int)
    assert expected.max() > 240
    assert np.abs(found - expected).mean() < 18, "of 255"
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.88


@pytest.mark.parametrize("form", ["JPEG", "WEBP", "BMP", "TIFF"])
def test_file_formats(form: str) -> None:
    assert np.abs(seen(drawn(), form).astype(int) - seen(drawn()).astype(int)).mean() < 2


def test_a_photograph_that_lies_on_its_side() -> None:
    lying = drawn().rotate(90, expand=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it by 90 degrees clockwise
    text = encoded(lying, "JPEG", exif=exif)
    found = read(text)[0, 0]
    assert np.abs(found.astype(int) - seen(drawn()).astype(int)).mean() < 2


def test_it_lies_as_those_of_mnist_do() -> None:
    found = seen(drawn()).astype(float)
    rows, columns = np.flatnonzero(found.any(axis=1)), np.flatnonzero(found.any(axis=0))
    assert max(rows[-1] - rows[0], columns[-1] - columns[0]) + 1 == 20
    for axis in (0, 1):
        centre = (found.sum(axis=1 - axis) * np.arange(28)).sum() / found.sum()
        assert 13.5 <= centre < 14.5


def test_one_of_the_data_sets_own_is_left_as_it_is() -> None:
    own = seen(drawn())
    np.testing.assert_array_equal(seen(Image.fromarray(own)), own)


def test_hairlines_are_thickened_and_thick_strokes_are_not() -> None:
    hairline, thick = seen(drawn(1000, 4)), seen(drawn(1000, 90))
    assert (hairline > 100).sum() > 20
    assert 0.9 < seen(drawn()).sum() / seen(drawn(560, 48)).sum() < 1.1
    assert thick.sum() > 1.3 * hairline.sum()


def test_another_box() -> None:
    found = read(encoded(drawn()), (1, 8, 8), Handwriting(8, by_mass=False))[0, 0]
    assert found.shape == (8, 8)
    assert found[0].any()
    assert found[-1].any()


def test_folders_are_resized_as_in_training() -> None:
    from tenfold.data.images import decode

    image = Image.effect_noise((60, 40), 80).convert("RGB")
    found = read(encoded(image), (3, 16, 16), None)
    np.testing.assert_array_equal(found[0], decode(base64.b64decode(encoded(image)), (16, 16), 3).pixels)


def test_specks_around_nothing_are_answered() -> None:
    assert seen(Image.fromarray(SPECKS)).max() > 200


def test_a_data_url() -> None:
    text = encoded(drawn())
    np.testing.assert_array_equal(read(f"data:image/png;base64,{text}"), read(text))


SPECKS = np.full((64, 64), 255, np.uint8)
SPECKS[[29, 31, 30, 30, 29], [30, 30, 29, 31, 31]] = 0
SHEET = np.full((300, 300), 50, np.uint8)
SHEET[60:150, 70:160] = 230
REFUSED = {
    "28x28 of 0 and 1": (encoded(drawn().resize((28, 28)).point(lambda value: value // 128)), "shows nothing"),
    "blank": (encoded(Image.new("L", (99, 99), 200)), "shows nothing"),
    "a sheet on a table": (encoded(Image.fromarray(SHEET)), "shows no single character"),
    "nearly blank": (encoded(Image.effect_noise((99, 99), 4)), "shows nothing"),
    "transparent": (encoded(Image.new("RGBA", (99, 99))), "shows nothing"),
    "no base64": ("not base64!", "is a string, but no base64"),
    "not ASCII": ("é", "is a string, but no base64"),
    "empty": ("", "is no image"),
    "text": (base64.b64encode(b"hello").decode(), "is no image"),
    "cut short": (base64.b64encode(base64.b64decode(encoded(drawn()))[:300]).decode(), "is damaged"),
    "a bomb": (encoded(Image.new("1", (20_000, 20_000))), "is a decompression bomb"),
    "GIF": (encoded(drawn(), "GIF"), "is no image"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(classifier: Classifier, text: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        classifier.answer([encoded(drawn()), text])
    assert str(caught.value).startswith("inputs[1] shows" if "shows" in message else "inputs[1] is")
    assert len(str(caught.value)) < 250
