"""Random change of whole training batches, on the device that trains."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def random_affine(images: Tensor, shift: float, rotate: float, scale: float) -> Tensor:
    """Shift, turn and resize each image by an amount of its own, all in one call.

    Drawn from torch's global generator, which is seeded anew for each epoch. What comes in from outside is 0.

    Args:
        images: [N, C, H, W], uint8 or floating point.
        shift: largest shift along each axis, in pixels.
        rotate: largest angle, in degrees.
        scale: largest change of size, as a share (0.1: from 0.9 to 1.1).

    Returns:
        [N, C, H, W], float32 on the same scale; `images` as they are when nothing is asked for.
    """
    if not (shift or rotate or scale):
        return images
    count, _, height, width = images.shape
    angle, size, right, down = torch.empty(4, count, device=images.device).uniform_(-1, 1)
    angle = angle * math.radians(rotate)
    size = 1 + size * scale
    cos, sin = angle.cos() / size, angle.sin() / size
    theta = torch.stack(
        [
            cos,
            -sin * height / width,
            right * 2 * shift / width,
            sin * width / height,
            cos,
            down * 2 * shift / height,
        ],
        dim=1,
    ).view(count, 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
