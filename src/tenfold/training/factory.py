"""From settings and the split's summary to the module that trains."""

from __future__ import annotations

from tenfold.data.summary import Summary
from tenfold.modeling.module import Classifier
from tenfold.modeling.networks import NetworkSpec, build
from tenfold.params import Params, Schedule
from tenfold.training.tricks import apply_memory_format


def build_classifier(
    params: Params, summary: Summary, learning_rate: float, schedule: Schedule | None = None
) -> Classifier:
    """A network with fresh weights (drawn from torch's global generator), ready to train on the summary's images."""
    channels, height, width = summary.image_shape
    spec = NetworkSpec(
        network=params.model.network,
        width=params.model.width,
        dropout=params.model.dropout,
        channels=channels,
        image_size=(height, width),
        classes=tuple(summary.classes),
        mean=tuple(summary.mean),
        std=tuple(summary.std),
        test_time_shift=params.model.test_time_shift,
    )
    network = build(spec)
    apply_memory_format(params.train, network)
    return Classifier(
        network,
        spec,
        learning_rate=learning_rate,
        optimizer=params.train.optimizer,
        augment=params.train.augment,
        label_smoothing=params.train.label_smoothing,
        schedule=schedule,
    )
