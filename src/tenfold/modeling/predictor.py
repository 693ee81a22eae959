"""A trained network as a LightningModule, for `Trainer.predict`."""

from __future__ import annotations

from pathlib import Path

import torch
from pytorch_lightning import LightningModule
from torch import Tensor

from tenfold.modeling import checkpoint
from tenfold.modeling.networks import NetworkSpec, PixelNetwork

Batch = tuple[Tensor, Tensor]


class Predictor(LightningModule):
    """A network and what it was built from.

    Takes batches of (images uint8 [N, C, H, W], labels int64 [N]); `Trainer.predict` gives logits [N, K] per batch.
    """

    def __init__(self, network: PixelNetwork, spec: NetworkSpec) -> None:
        super().__init__()
        self.network = network
        self.spec = spec
        self.example_input_array = torch.zeros(1, spec.channels, *spec.image_size, dtype=torch.uint8)

    @classmethod
    def load(cls, path: Path) -> Predictor:
        """The model of a checkpoint; raises TenfoldError as `checkpoint.load_network` does."""
        return cls(*checkpoint.load_network(path))

    def forward(self, images: Tensor) -> Tensor:
        """Pixels [N, C, H, W] to logits [N, K]."""
        logits: Tensor = self.network(images)
        return logits

    def predict_step(self, batch: Batch, batch_index: int) -> Tensor:
        """Logits [N, K] of a batch."""
        logits: Tensor = self(batch[0])
        return logits
