"""The networks: pixels in, logits out. Normalisation is part of the network, so training and serving cannot differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


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
        test_time_shift: pixels; see `PixelNetwork`.
    """

    network: str
    width: int
    dropout: float
    channels: int
    image_size: tuple[int, int]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    test_time_shift: int = 0  # models of before have none


class PixelNetwork(nn.Module):
    """Normalises pixels, then applies the layers.

    Takes pixels [N, C, H, W] of 0…255 (uint8 or floating point); returns logits [N, K], float32 (float64 if the
    weights are). With a `test_time_shift`, and not while it is trained, these are the means of the logits of an image
    and of its shifts by so many pixels to the four sides, as in https://arxiv.org/abs/2404.00498; what comes in at the
    border repeats it.

    Attributes:
        checkpoint_activations: while training, keep no feature maps within a layer but compute them again for the
            backward pass (https://arxiv.org/abs/1604.06174). The gradients are the same.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(spec.mean).view(1, -1, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(spec.std).view(1, -1, 1, 1))
        self.layers = NETWORKS[spec.network](spec)
        self.test_time_shift = spec.test_time_shift
        self.checkpoint_activations = False

    def forward(self, images: Tensor) -> Tensor:
        """Pixels [N, C, H, W] to logits [N, K]."""
        normalised = (images.to(self.mean.dtype) - self.mean) / self.std
        views = [normalised] if self.training or not self.test_time_shift else self._shifted(normalised)
        layers = self._checkpointed if self.checkpoint_activations and self.training else self.layers
        answers = [layers(view) for view in views]
        logits: Tensor = answers[0] if len(answers) == 1 else torch.stack(answers).mean(0)
        return logits if logits.dtype == torch.float64 else logits.float()

    def _checkpointed(self, features: Tensor) -> Tensor:
        for layer in self.layers:
            features = checkpoint(layer, features, use_reentrant=False, context_fn=_once(layer))
        return features

    def _shifted(self, images: Tensor) -> list[Tensor]:
        shift, (height, width) = self.test_time_shift, images.shape[2:]
        wider = F.pad(images, [shift] * 4, mode="replicate")
        starts = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
        return [wider[:, :, y * shift : y * shift + height, x * shift : x * shift + width] for y, x in starts]


def _once(layer: nn.Module) -> Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
    """For `checkpoint`: the second pass through a layer leaves BatchNorm's running statistics alone."""

    @contextmanager
    def untracked() -> Iterator[None]:
        norms = [module for module in layer.modules() if isinstance(module, _BatchNorm)]
        kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        try:
            yield
        finally:
            for norm, (momentum, tracked) in zip(norms, kept, strict=True):
                norm.momentum, norm.num_batches_tracked = momentum, tracked

    return lambda: (nullcontext(), untracked())


def build(spec: NetworkSpec) -> PixelNetwork:
    """The network with fresh weights drawn from torch's global generator."""
    return PixelNetwork(spec)


class GlobalMaxPool(nn.Module):
    """The largest value of each feature map."""

    def forward(self, features: Tensor) -> Tensor:
        """[N, C, H, W] to [N, C]."""
        return features.amax(dim=(2, 3))


def _article(spec: NetworkSpec) -> nn.Sequential:
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


def _block(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, pool: bool = False) -> nn.Module:
    """Convolution, then pooling, which makes all that follows four times cheaper, then BatchNorm and ReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    return nn.Sequential(convolution, *[nn.MaxPool2d(2)] * pool, nn.BatchNorm2d(outputs), nn.ReLU())


def _compact(spec: NetworkSpec) -> nn.Sequential:
    """A strided stem that writes little, three 3×3 convolutions, the largest value of each feature map.

    The stem brings images of any size to about 14×14. Padding is left out where the feature map is large enough
    (28×28 becomes 13, 11, pooled 5, 5, 3), which makes it cheaper and no worse; small maps keep it. 61,162
    parameters with width 16, one channel and 10 classes.
    """
    width = spec.width
    side = min(spec.image_size)
    stride = max(1, round(side / 14))
    kernel = 2 * stride if stride > 1 else 3
    side = (side - kernel) // stride + 1
    blocks = [_block(spec.channels, width, kernel, stride)]
    inputs = width
    for outputs, shrink, pool in (
        (2 * width, True, True),
        (4 * width, False, False),
        (4 * width, True, False),
    ):
        padding = 0 if shrink and side >= 5 else 1
        blocks.append(_block(inputs, outputs, 3, 1, padding, pool))
        side = (side - 2 + 2 * padding) // (2 if pool else 1)
        inputs = outputs
    head = nn.Linear(inputs, len(spec.classes))
    return nn.Sequential(*blocks, GlobalMaxPool(), nn.Dropout(spec.dropout), head)


NETWORKS: dict[str, Callable[[NetworkSpec], nn.Sequential]] = {"compact": _compact, "article": _article}
