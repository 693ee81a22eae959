"""Pictures of characters as the pixels that a network was trained on: made as MNIST's digits were."""

from __future__ import annotations

import operator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageFilter

from ..data import images
from .pixels import Shape

Float = npt.NDArray[np.float32]

FAINTEST = 25.0
"""Smallest difference between ink and ground, of 255."""
CLEARLY = 1.5
"""So many times as strong is no chance."""
LIGHT = 200
"""The lightest pixel of the data sets' own images is lighter."""
SOLID = 0.65
"""Of MNIST's digits that are not narrow, one in a thousand fills so much of its box."""
GRID = 64
"""Cells of the longer side at which parts of a picture are told apart."""
FAINT = 0.3
"""What is fainter than so much of the usual stroke belongs to the ground."""
SMALL = 32
"""Pixels of the longer side at which the ground is looked at."""
THIN, FINE = 0.09, 4
"""Strokes thinner than this share of the character are thickened, at so many times the resolution of the result."""


class Handwriting(NamedTuple):
    """How characters lie in a data set's images, light on dark: see `tenfold.datasets.Handwriting`."""

    box: int
    by_mass: bool


def write_like(image: Image.Image, shape: Shape, way: Handwriting) -> npt.NDArray[np.uint8]:
    """A picture of one character, made like MNIST's: light on dark, cropped, scaled into a box, centred.

    LeCun et al. 1998, http://yann.lecun.com/exdb/mnist/: "size normalized to fit in a 20x20 pixel box while preserving
    their aspect ratio", "centered in a 28x28 image by computing the center of mass of the pixels".

    Args:
        image: dark on light or light on dark, grey or colour, with or without transparency.
        shape: 1, H, W of the result.
        way: of the data set.

    Returns:
        uint8 [1, H, W].

    Raises:
        images.BadImageError: it shows nothing.
    """
    if image.mode == "L" and image.size == shape[:0:-1] and _is_own(np.asarray(image), way):
        return np.asarray(image)[None]
    ink = _ink(image)
    values = np.asarray(ink, np.float32)
    mask = values > _otsu(ink.histogram())
    if min(mask.shape) > 2 * way.box:  # specks; in a small picture, a dot may be a part of the character
        cleaned = mask & (np.asarray(Image.fromarray(mask).convert("L").filter(ImageFilter.MedianFilter(3))) > 0)
        mask = _character(cleaned if cleaned.any() else mask)
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    level = np.median(values[mask])
    strokes = np.where(values < FAINT * level, 0, np.minimum(values / level, 1)).astype(np.float32)
    character = strokes[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scaled = _scale(character, way.box)
    if scaled.mean() > SOLID and min(scaled.shape) > way.box / 2:
        raise images.BadImageError(
            "shows no single character: a block of it stands out, as a shadow or the edge of a sheet does. Crop it"
        )
    return (_centre(scaled, shape[1:], way.by_mass) * 255).round().astype(np.uint8)[None]


def _is_own(pixels: npt.NDArray[np.uint8], way: Handwriting) -> bool:
    """Whether it lies as the data set's own images do, and is as light."""
    found = Image.fromarray(pixels).getbbox()
    if found is None or pixels.max() < LIGHT:
        return False
    left, top, right, bottom = found
    if max(right - left, bottom - top) != way.box or way.box == max(pixels.shape):
        return False
    character = pixels[top:bottom, left:right].astype(np.float32)
    return _place(character, pixels.shape, way.by_mass) == (top, left)


def _character(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The mask without what lies at the edge of the picture (a table, a frame) or far off and small (dust)."""
    small = Image.fromarray(mask).convert("L")
    small.thumbnail((GRID, GRID), Image.Resampling.BOX)
    cells = np.asarray(small) > 0
    parts = _components(cells)
    height, width = cells.shape
    boxes = [(*part.min(axis=0), *part.max(axis=0)) for part in parts]
    at_edge = [min(box[:2]) == 0 or box[2] == height - 1 or box[3] == width - 1 for box in boxes]
    sides = [max(box[2] - box[0], box[3] - box[1]) + 1 for box in boxes]
    inside = [index for index, edge in enumerate(at_edge) if not edge and sides[index] > GRID / 16]
    kept = inside or list(range(len(parts)))
    main = max(kept, key=lambda index: len(parts[index]))
    reach = sides[main] / 2
    keep = np.zeros_like(cells)
    for index in kept:
        gaps = np.maximum(np.array(boxes[index][:2]) - boxes[main][2:], np.array(boxes[main][:2]) - boxes[index][2:])
        if len(parts[index]) * 10 > len(parts[main]) or gaps.max() < reach / 2:
            keep[tuple(parts[index].T)] = True
    whole = Image.fromarray(keep).convert("L").resize(mask.shape[::-1], Image.Resampling.NEAREST)
    near = np.asarray(whole.filter(ImageFilter.MaxFilter(3))) > 0
    return mask & near


def _components(cells: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.int_]]:
    """The parts that hang together, corners included: the places of each, [N, 2]."""
    left = {(int(row), int(column)) for row, column in np.argwhere(cells)}
    parts = []
    while left:
        waiting = [left.pop()]
        part = list(waiting)
        while waiting:
            row, column = waiting.pop()
            near = {(row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)} & left
            left -= near
            waiting += near
            part += near
        parts.append(np.array(part))
    return parts


def _ink(image: Image.Image) -> Image.Image:
    """How much each pixel stands out from the ground around it, in that band where most does: 8 bits."""
    layers = [image]
    if image.has_transparency_data:  # whatever can be seen of it on white or on black
        rgba = image.convert("RGBA")
        layers = [Image.alpha_composite(Image.new("RGBA", rgba.size, ground), rgba) for ground in ("white", "black")]
    found = [_stand_out(layer.convert("L")) for layer in layers]
    if max(strength for strength, _ in found) < 2 * FAINTEST:  # a colour may be as light as the other
        found += [_stand_out(band) for layer in layers if layer.mode != "L" for band in layer.convert("RGB").split()]
    strength, ink = max(found, key=operator.itemgetter(0))
    if strength < FAINTEST:
        raise images.BadImageError("shows nothing: all of it is about as light as what is around it")
    return ink


def _stand_out(band: Image.Image) -> tuple[float, Image.Image]:
    """The ink, darker or lighter than the ground, and how much it stands out."""
    values = np.asarray(band)
    edge = max(1, min(values.shape) // 20)
    sides = (values[:edge], values[-edge:], values[:, :edge], values[:, -edge:])
    ground = float(np.median(np.concatenate([side.ravel() for side in sides])))
    darkest, lightest = _range(band)
    ways = [_without_ground(ImageChops.invert(band)), _without_ground(band)]
    strengths = [_range(ink)[1] for ink in ways]
    if max(strengths) < CLEARLY * min(strengths):  # a hole stands out from its strokes as much as they do
        best = int(lightest - ground > ground - darkest)
    else:
        best = int(np.argmax(strengths))
    return strengths[best], ways[best]


def _range(band: Image.Image) -> tuple[float, float]:
    """Darkest and lightest, without the noise of single pixels where there are many."""
    lowest, highest = (band.filter(ImageFilter.BoxBlur(1)) if min(band.size) > 64 else band).getextrema()
    return float(lowest), float(highest)  # type: ignore[arg-type]  # pairs only where there are several bands


def _without_ground(band: Image.Image) -> Image.Image:
    """The band without its ground, which may be lighter here and darker there, as on photographs.

    The ground is what is left when all that is lighter and narrower than a third of the picture has been taken away
    (a morphological opening; what stays is a "white top hat").
    """
    small = band.copy()
    small.thumbnail((SMALL, SMALL), Image.Resampling.BOX)
    values = np.asarray(small, np.float32)
    slope = _plane(values)  # an opening cuts off the end of a slope, so it must not see any
    window = max(3, max(small.size) // 3 | 1)
    flat = Image.fromarray(values - slope).filter(ImageFilter.MinFilter(window)).filter(ImageFilter.MaxFilter(window))
    ground = Image.fromarray((np.asarray(flat) + slope).clip(0, 255).round().astype(np.uint8))
    return ImageChops.subtract(band, ground.resize(band.size, Image.Resampling.BILINEAR))


def _plane(values: Float) -> Float:
    """The plane that fits best."""
    rows, columns = np.indices(values.shape).reshape(2, -1)
    terms = np.stack([np.ones(values.size), rows, columns], axis=1)
    factors = np.linalg.lstsq(terms, values.ravel(), rcond=None)[0]
    plane: Float = (terms @ factors).reshape(values.shape).astype(np.float32)
    return plane


def _otsu(histogram: list[int]) -> int:
    """The value that parts 0…255 best into two classes (Otsu 1979, doi:10.1109/TSMC.1979.4310076)."""
    counts, values = np.array(histogram, np.float64), np.arange(256)
    below = np.cumsum(counts)
    above = np.maximum(below[-1] - below, 1)
    mass = np.cumsum(counts * values)
    between = below * above * (mass / np.maximum(below, 1) - (mass[-1] - mass) / above) ** 2
    return int(np.argmax(between))


def _scale(character: Float, box: int) -> Float:
    """The character with its longer side as long as the box, and strokes that can be seen then."""
    longest = max(character.shape)
    if longest > 2 * box:
        character = _resize(character, FINE * box)
        character /= max(float(np.quantile(character[character > 0], 0.9)), 1e-6)
        character = _thicken(np.minimum(character, 1))
    return _resize(character, box)


def _resize(values: Float, longest: int) -> Float:
    factor = longest / max(values.shape)
    height, width = (max(1, round(side * factor)) for side in values.shape)
    way = Image.Resampling.BOX if factor < 1 else Image.Resampling.BILINEAR
    resized: Float = np.array(Image.fromarray(values).resize((width, height), way), np.float32)
    return resized


def _thicken(strokes: Float) -> Float:
    """Strokes at least `THIN` wide: a hairline would vanish when it is scaled down."""
    mask = np.pad(strokes > 0.5, 1)
    inside = mask[:-2, 1:-1] & mask[2:, 1:-1] & mask[1:-1, :-2] & mask[1:-1, 2:] & mask[1:-1, 1:-1]
    outline = mask.sum() - inside.sum()
    width = 2 * mask.sum() / max(outline, 1)
    grow = int(np.ceil((THIN * max(strokes.shape) - width) / 2))
    if grow < 1:
        return strokes
    wide = Image.fromarray((np.pad(strokes, grow) * 255).astype(np.uint8)).filter(ImageFilter.MaxFilter(2 * grow + 1))
    return np.asarray(wide, np.float32) / np.float32(255)


def _centre(character: Float, size: tuple[int, ...], by_mass: bool) -> Float:
    """The character on black, [H, W], in the middle as the data set has it."""
    top, left = _place(character, size, by_mass)
    result = np.zeros(size, np.float32)
    result[top : top + character.shape[0], left : left + character.shape[1]] = character
    return result


def _place(character: Float, size: tuple[int, ...], by_mass: bool) -> tuple[int, int]:
    """Where the character's upper left corner comes to lie."""
    places = []
    for axis, (room, side) in enumerate(zip(size, character.shape, strict=True)):
        place = (room - side + 1) // 2
        if by_mass:  # MNIST's own lie between room / 2 and a pixel further
            profile = character.sum(axis=1 - axis)
            place = int(np.ceil(room / 2 - (profile * (np.arange(side) + 0.5)).sum() / profile.sum()))
        places.append(min(max(place, 0), room - side))
    return places[0], places[1]
