"""The networks: pixels in, logits out. Normalisation is part of the network, so training and serving cannot differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class NetworkSpec:
    """What a network is built from.

    Attributes:
        network: a key of `NETWORKS`.
        width: channels of the first convolution.
        dropout: share of feature maps dropped while training.
        channels: of the images.
        image_size: height and width of the images, in pixels.
        classes: names, in the order of the labels.
        mean: of the training pixels, per channel, on a scale of 0…1.
        std: standard deviation of the training pixels, likewise.
    """

    network: str
    width: int
    dropout: float
    channels: int
    image_size: tuple[int, int]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


class PixelNetwork(nn.Module):
    """Normalises pixels, then applies the layers.

    Takes pixels [N, C, H, W] of 0…255 (uint8 or floating point); returns logits [N, K], float32 (float64 if the
    weights are).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(spec.mean).view(1, -1, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(spec.std).view(1, -1, 1, 1))
        self.layers = NETWORKS[spec.network](spec)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers((images.to(self.mean.dtype) - self.mean) / self.std)
        return logits if logits.dtype == torch.float64 else logits.float()


def build(spec: NetworkSpec) -> PixelNetwork:
    """The network with fresh weights drawn from torch's global generator."""
    return PixelNetwork(spec)


class GlobalMaxPool(nn.Module):
    """[N, C, H, W] → [N, C]: the largest value of each feature map."""

    def forward(self, features: Tensor) -> Tensor:
        return features.amax(dim=(2, 3))


def _article(spec: NetworkSpec) -> nn.Module:
    """The network of the articles: 54.0 K parameters with width 32 and 10 classes."""
    width = spec.width
    return nn.Sequential(
        nn.Conv2d(spec.channels, width, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout2d(spec.dropout),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 32),
        nn.ReLU(),
        nn.Linear(32, len(spec.classes)),
    )


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def _compact(spec: NetworkSpec) -> nn.Module:
    """A strided stem that writes little, two pairs of 3×3 convolutions, the largest value of each feature map."""
    width = spec.width
    return nn.Sequential(
        nn.Conv2d(spec.channels, width, kernel_size=4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        _convolution(width, width),
        _convolution(width, width),
        nn.MaxPool2d(2),
        _convolution(width, 2 * width),
        _convolution(2 * width, 2 * width),
        GlobalMaxPool(),
        nn.Dropout(spec.dropout),
        nn.Linear(2 * width, len(spec.classes)),
    )


NETWORKS: dict[str, Callable[[NetworkSpec], nn.Module]] = {"compact": _compact, "article": _article}
