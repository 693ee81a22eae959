from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tenfold.data import images


def content(image: Image.Image, format_: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format_, **options)
    return stream.getvalue()


def grey(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.arange(height * width, dtype=np.uint8).reshape(height, width))


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 50), np.uint8))
RED = Image.new("RGB", (40, 30), (200, 10, 20))


@pytest.mark.parametrize("format_", ["PNG", "BMP", "TIFF", "WEBP"])
def test_lossless_formats_give_the_pixels_as_they_are(format_: str) -> None:
    image = grey(9, 7)
    decoded = images.decode(
        content(image.convert("RGB"), format_, **({"lossless": True} if format_ == "WEBP" else {})), (9, 7), 3
    )
    assert decoded.pixels.dtype == np.uint8
    np.testing.assert_array_equal(decoded.pixels, np.asarray(image)[None].repeat(3, 0))


def test_jpeg() -> None:
    decoded = images.decode(content(RED, "JPEG", quality=95), (30, 40), 3)
    assert decoded.has_colour
    assert abs(decoded.pixels.mean((1, 2)) - [200, 10, 20]).max() < 4
    assert images.decode(content(RED, "JPEG"), (30, 40), 1).has_colour, "that of the file, not of what was made of it"


@pytest.mark.parametrize(
    ("image", "expected", "has_colour"),
    [
        (Image.new("L", (8, 8), 100), (100, 100, 100), False),
        (Image.new("1", (8, 8), 1), (255, 255, 255), False),
        (Image.new("LA", (8, 8), (100, 255)), (100, 100, 100), False),
        (Image.new("LA", (8, 8), (0, 0)), (255, 255, 255), False),
        (Image.new("RGBA", (8, 8), (255, 0, 0, 255)), (255, 0, 0), True),
        (Image.new("RGBA", (8, 8), (255, 0, 0, 0)), (255, 255, 255), True),
        (Image.new("RGB", (8, 8), (1, 2, 3)).quantize(2), (1, 2, 3), True),
        (Image.fromarray(np.full((8, 8), 0x8040, np.uint16)), (0x80, 0x80, 0x80), False),
    ],
    ids=["grey", "1 bit", "grey opaque", "grey transparent", "opaque", "transparent over white", "palette", "16 bits"],
)
def test_modes(image: Image.Image, expected: tuple[int, int, int], has_colour: bool) -> None:
    decoded = images.decode(content(image), (8, 8), 3)
    np.testing.assert_array_equal(decoded.pixels, np.array(expected, np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2))
    assert decoded.has_colour is has_colour
    single = images.decode(content(image), (8, 8), 1)
    assert single.pixels.shape == (1, 8, 8)
    assert single.has_colour is has_colour


def test_cmyk_and_a_transparent_colour() -> None:
    cmyk = images.decode(content(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "TIFF"), (8, 8), 3)
    assert tuple(cmyk.pixels[:, 0, 0]) == (255, 0, 0)
    keyed = content(Image.new("RGB", (8, 8), (5, 6, 7)), transparency=(5, 6, 7))
    assert images.decode(keyed, (8, 8), 3).pixels.min() == 255


def test_it_is_turned_upright() -> None:
    image = Image.new("L", (4, 4))
    image.putpixel((3, 0), 255)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    for format_ in ("PNG", "TIFF"):
        pixels = images.decode(content(image, format_, exif=exif), (4, 4), 1).pixels
        assert pixels[0, 3, 3] == 255
        assert pixels.sum() == 255


def test_it_is_turned_upright_by_exif_data_behind_the_pixels() -> None:
    image = Image.new("L", (4, 4))
    image.putpixel((3, 0), 255)
    exif = Image.Exif()
    exif[0x0112] = 6
    note = b"eXIf" + exif.tobytes()[6:]
    chunk = struct.pack(">I", len(note) - 4) + note + struct.pack(">I", zlib.crc32(note))
    png = content(image)
    pixels = images.decode(png[:-12] + chunk + png[-12:], (4, 4), 1).pixels
    assert pixels[0, 3, 3] == 255
    assert pixels.sum() == 255


def test_it_is_turned_upright_by_xmp_data() -> None:
    image = Image.new("L", (16, 16))
    image.paste(255, (8, 0, 16, 8))
    xmp = b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    pixels = images.decode(content(image, "JPEG", xmp=xmp), (16, 16), 1).pixels
    assert pixels[0, 8:, 8:].mean() > 240
    assert pixels[0, :8].mean() < 10


def test_it_covers_the_target_and_is_cut_from_the_middle() -> None:
    wide = np.zeros((10, 30), np.uint8)
    wide[:, 10:20] = 200
    assert images.decode(content(Image.fromarray(wide)), (10, 10), 1).pixels.min() > 150
    small = images.decode(content(Image.new("L", (3, 5), 77)), (16, 16), 1).pixels
    assert (small.shape, small.min(), small.max()) == ((1, 16, 16), 77, 77)
    assert images.decode(content(grey(6, 5)), None, 1).pixels.shape == (1, 6, 5)


def test_a_large_jpeg_looks_the_same_when_decoded_at_a_fraction_of_its_size() -> None:
    y, x = np.mgrid[:1024, :1024]
    image = Image.fromarray((127 + 60 * np.sin(x / 90) + 60 * np.cos(y / 70)).astype(np.uint8))
    fast = images.decode(content(image, "JPEG", quality=95), (32, 32), 1).pixels.astype(int)
    exact = images.decode(content(image), (32, 32), 1).pixels.astype(int)
    assert abs(fast - exact).max() <= 4


def test_a_large_jpeg_that_is_turned_keeps_its_detail() -> None:
    wide = NOISE.resize((2000, 50)).resize((4000, 400))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = images.decode(content(wide, "JPEG", quality=95, exif=exif), (20, 200), 1).pixels
    expected = images.decode(content(wide.transpose(Image.Transpose.ROTATE_270)), (20, 200), 1).pixels
    assert abs(turned.astype(int) - expected).mean() < 3


def test_the_first_frame_counts() -> None:
    frames = [Image.new("L", (8, 8), 10), Image.new("L", (8, 8), 90)]
    stacked = content(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    assert images.decode(stacked, (8, 8), 1).pixels.max() == 10


def bomb() -> bytes:
    """A PNG of a hundred thousand by a hundred thousand pixels, by its header."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (b"", "is no image"),
        (b"To be or not to be", "is no image"),
        (content(NOISE)[:-200], "is damaged"),
        (content(RED, "JPEG")[:300], "is damaged"),
        (content(RED, "GIF"), "is no image"),
        (bomb(), "is a decompression bomb"),
        (content(Image.new("L", (10_000, 9_000)), "PNG"), "is a decompression bomb: 10,000×9,000 pixels"),
        (content(Image.new("F", (8, 8)), "TIFF"), "has 32-bit values, of no known range"),
    ],
    ids=["empty", "text", "cut PNG", "cut JPEG", "GIF", "bomb", "too large", "floating point"],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bad_images_are_refused_with_the_reason(damaged: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(images.BadImageError) as error:
        images.decode(damaged, (8, 8), 1)
    assert str(error.value).startswith(why)


def test_the_header_tells_size_and_colour(tmp_path: Path) -> None:
    RED.save(tmp_path / "a.png")
    assert images.probe(tmp_path / "a.png") == (30, 40, True)
    grey(6, 5).save(tmp_path / "b.bmp")
    assert images.probe(tmp_path / "b.bmp") == (6, 5, False)
    with pytest.raises(images.BadImageError):
        images.probe(tmp_path / "c.png")
