"""From settings and the split's summary to the module that trains."""

from __future__ import annotations

from tenfold.data.summary import Summary
from tenfold.modeling.module import Classifier
from tenfold.modeling.networks import NetworkSpec, build
from tenfold.params import Params
from tenfold.training.strategies import ShardedClassifier
from tenfold.training.tricks import prepare_network


def build_classifier(params: Params, summary: Summary, learning_rate: float, scheduled: bool = False) -> Classifier:
    """A network with fresh weights (drawn from torch's global generator), ready to train on the summary's images.

    Args:
        params: all settings.
        summary: of the split.
        learning_rate: highest of the schedule.
        scheduled: for the training itself: with the learning-rate schedule, and divided if `train.strategy` says so.
    """
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
    prepare_network(params.train, network)
    kind = ShardedClassifier if scheduled and params.train.strategy == "sharded" else Classifier
    return kind(network, spec, learning_rate=learning_rate, train=params.train, scheduled=scheduled)
