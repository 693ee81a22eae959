"""How good predictions are, measured over a whole set of images, never as a mean of batch means."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torchmetrics.functional import classification as tm

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PER_CLASS = ("precision", "recall", "f1", "auroc")
UNCHECKED: dict[str, Any] = {"validate_args": False}
"""Torchmetrics' own checks take longer than its measuring; cross entropy checks the labels as well."""


@dataclass(frozen=True)
class Bins:
    """Predictions grouped by confidence (the probability of the predicted class), in B bins of equal width.

    Arrays [B]; all but `count` are NaN where a bin is empty.
    """

    count: Ints
    confidence: Floats  # mean of the bin
    accuracy: Floats  # share of right answers
    low: Floats  # 95 % interval of the accuracy, Wilson's
    high: Floats


@dataclass(frozen=True)
class Measures:
    """The measures of N predictions over K classes.

    `precision`, `recall`, `f1` and `auroc` (one class against the rest) are arrays [K]. Nothing can be
    said of a class without images in the set: all four are NaN. A class that is there but never predicted has
    precision 0. The AUROC is NaN also where the set holds nothing but that class. Means over classes leave
    NaN out.
    """

    n: int
    loss: float  # cross entropy, without label smoothing
    acc: float
    acc_low: float  # 95 % interval of the accuracy, Wilson's
    acc_high: float
    ece: float  # expected calibration error: mean distance of confidence and accuracy over the bins
    precision: Floats
    recall: Floats
    f1: Floats
    auroc: Floats
    confusion: Ints  # [K, K]: row = actual class, column = predicted class
    bins: Bins
    actual: Ints  # [N]
    predicted: Ints  # [N]
    probabilities: Floats  # [N, K]

    @property
    def support(self) -> Ints:
        """Images of each class [K]."""
        return np.asarray(self.confusion.sum(axis=1))

    @property
    def confidence(self) -> Floats:
        """The probability of the predicted class [N]."""
        return np.asarray(self.probabilities.max(axis=1))

    def summary(self) -> dict[str, float | int | None]:
        """The single numbers, rounded for a file; None: a mean over no class at all."""
        single = {key: round(getattr(self, key), 6) for key in ("loss", "acc", "acc_low", "acc_high", "ece")}
        macro = {key: _mean(getattr(self, key)) for key in PER_CLASS}
        return {"n": self.n, **single, **macro}

    def per_class(self) -> list[dict[str, Any]]:
        """One row per class: the four measures, rounded (None for NaN), and the number of images."""
        columns = {key: [_rounded(value) for value in getattr(self, key)] for key in PER_CLASS}
        columns["support"] = self.support.tolist()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def measure(logits: Tensor, labels: Tensor, bins: int) -> Measures:
    """Measure the predictions for a whole set.

    Args:
        logits: float32 [N, K], finite, N > 0, K > 1.
        labels: int64 [N], each in 0…K-1.
        bins: number of confidence bins of the calibration error.

    Raises:
        IndexError: a label is not in 0…K-1.
    """
    # In float32, an ECE of 1e-5 over 55,000 images is wrong in its first digit.
    logits = logits.double()
    n, k = logits.shape
    loss = float(F.cross_entropy(logits, labels))
    probabilities, predicted = logits.softmax(dim=1), logits.argmax(dim=1)
    confidence, right = probabilities.amax(dim=1), predicted == labels
    low, high = wilson(int(right.sum()), n)
    confusion = tm.multiclass_confusion_matrix(predicted, labels, k, **UNCHECKED).numpy()
    support = confusion.sum(axis=1)
    absent = support == 0

    def by_class(values: Tensor, undefined: NDArray[np.bool_]) -> Floats:
        return np.where(undefined, np.nan, values.double().numpy())

    return Measures(
        n=n,
        loss=loss,
        acc=int(right.sum()) / n,
        acc_low=float(low),
        acc_high=float(high),
        # "Is the predicted class right?" is a binary question; asked so, torchmetrics keeps double precision.
        ece=float(tm.binary_calibration_error(confidence, right.long(), n_bins=bins, **UNCHECKED)),
        precision=by_class(tm.multiclass_precision(predicted, labels, k, average=None, **UNCHECKED), absent),
        recall=by_class(tm.multiclass_recall(predicted, labels, k, average=None, **UNCHECKED), absent),
        f1=by_class(tm.multiclass_f1_score(predicted, labels, k, average=None, **UNCHECKED), absent),
        auroc=by_class(_auroc(probabilities, labels), absent | (support == n)),
        confusion=confusion,
        bins=_binned(confidence.numpy(), right.numpy(), bins),
        actual=labels.numpy(),
        predicted=predicted.numpy(),
        probabilities=probabilities.numpy(),
    )


def wilson(right: ArrayLike, total: ArrayLike) -> tuple[Floats, Floats]:
    """Wilson's 95 % interval of a share, element by element: (low, high); NaN where `total` is 0."""
    k, n = np.asarray(right, dtype=float), np.asarray(total, dtype=float)
    z = 1.959963984540054  # the normal distribution's 97.5 % quantile
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = (k + z**2 / 2) / (n + z**2)
        half = z / (n + z**2) * np.sqrt(k * (n - k) / n + z**2 / 4)
        return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)


def _auroc(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Of each class against the rest [K]; classes with images on one side only have no meaningful value."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No (positive|negative) samples")
        k = probabilities.shape[1]
        return tm.multiclass_auroc(probabilities, labels, k, average=None, **UNCHECKED)


def _binned(confidence: Floats, right: NDArray[np.bool_], bins: int) -> Bins:
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    count = np.bincount(place, minlength=bins)
    hits = np.bincount(place, weights=right, minlength=bins)
    total = np.bincount(place, weights=confidence, minlength=bins)
    with np.errstate(invalid="ignore"):
        return Bins(count, total / count, hits / count, *wilson(hits, count))


def _mean(values: Floats) -> float | None:
    defined = values[~np.isnan(values)]
    return _rounded(defined.mean()) if len(defined) else None


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)
