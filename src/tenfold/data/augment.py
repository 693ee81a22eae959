"""Random change of whole training batches, on the device that trains."""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

KNOTS = 5
"""Per axis, of the grid whose points an elastic change moves; the outer ones lie on the border of the image."""
VALUES_AT_A_TIME = 1 << 22
"""Of the images that are changed together, so that a batch of large ones takes little more memory than itself."""


def distort(images: Tensor, shift: float, rotate: float, scale: float, shear: float, elastic: float) -> Tensor:
    """Shift, turn, resize, slant and bend each image by an amount of its own, all in one call.

    Drawn from torch's global generator on the CPU, which is seeded anew for each epoch. What comes in from outside
    is 0.

    Args:
        images: [N, C, H, W], uint8 or floating point.
        shift: largest shift along each axis, in pixels.
        rotate: largest angle, in degrees.
        scale: largest change of size, as a share (0.1: from 0.9 to 1.1).
        shear: largest sideways slant, as a share of the height.
        elastic: standard deviation, in pixels, of displacements that are drawn on a grid of `KNOTS` × `KNOTS` points
            and smooth between them (after Simard et al. 2003, https://doi.org/10.1109/ICDAR.2003.1227801, who smooth
            noise of every pixel instead).

    Returns:
        [N, C, H, W], float32 on the same scale; `images` as they are when nothing is asked for.
    """
    if not (shift or rotate or scale or shear or elastic):
        return images
    with torch.autocast(images.device.type, enabled=False):  # coordinates need all their digits
        return _resample(images, shift, rotate, scale, shear, elastic)


def _resample(images: Tensor, shift: float, rotate: float, scale: float, shear: float, elastic: float) -> Tensor:
    """`distort`, in float32 whatever torch's default is."""
    count, _, height, width = images.shape
    angle, size, right, down, slant = torch.empty(5, count, dtype=torch.float32).uniform_(-1, 1).to(images.device)
    angle = angle * math.radians(rotate)
    size = 1 + size * scale
    cos, sin = angle.cos() * size, angle.sin() * size
    # Where in the source each pixel of the result comes from, in pixels from the middle. One plain product: the
    # batched one of F.affine_grid costs more than the sampling itself.
    source_of = torch.stack([cos, slant * shear - sin, right * shift, sin, cos, down * shift], dim=1)
    x = torch.arange(width, dtype=torch.float32, device=images.device) - (width - 1) / 2
    y = torch.arange(height, dtype=torch.float32, device=images.device) - (height - 1) / 2
    pixels = torch.stack([x.repeat(height), y.repeat_interleave(width), torch.ones_like(x).repeat(height)])
    to_unit = torch.tensor([2 / width, 2 / height], dtype=torch.float32, device=images.device)
    if elastic:
        bends = torch.randn(count, 2, KNOTS * KNOTS, dtype=torch.float32).to(images.device) * elastic
        between = _between_knots(height, width).to(images.device)
    step = max(1, VALUES_AT_A_TIME // images[0].numel())
    changed = []
    for start in range(0, count, step):
        part, source = images[start : start + step], source_of[start : start + step]
        comes_from = source.view(2 * len(part), 3) @ pixels
        if elastic:
            comes_from += bends[start : start + step].flatten(0, 1) @ between
        grid = comes_from.view(len(part), 2, height, width).permute(0, 2, 3, 1)
        changed.append(F.grid_sample(part.float(), grid * to_unit, padding_mode="zeros", align_corners=False))
    return changed[0] if len(changed) == 1 else torch.cat(changed)


@cache
def _between_knots(height: int, width: int) -> Tensor:
    """[KNOTS², H·W]: what each knot adds to each pixel in bicubic interpolation."""
    knots = torch.eye(KNOTS * KNOTS, dtype=torch.float32).view(-1, 1, KNOTS, KNOTS)
    return F.interpolate(knots, size=(height, width), mode="bicubic", align_corners=True).flatten(1)
