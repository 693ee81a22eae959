from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn import metrics as sk
from torch import Tensor

from tenfold.report.measures import PER_CLASS, measure, wilson


@pytest.fixture(scope="module")
def sample() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (600,), generator=generator)
    logits = torch.randn(600, 5, generator=generator) * 2
    logits[torch.arange(600), labels] += 2
    return logits, labels


def logits_of(probabilities: list[list[float]]) -> Tensor:
    return torch.tensor(probabilities).log()


def test_a_set_small_enough_for_a_pencil() -> None:
    logits = logits_of([[0.6, 0.35, 0.05], [0.65, 0.25, 0.1], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8]])
    result = measure(logits, torch.tensor([0, 1, 1, 2]), bins=4)
    assert result.loss == pytest.approx(-math.log(0.6 * 0.25 * 0.7 * 0.8) / 4)
    assert result.acc == 0.75
    assert result.confusion.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert result.support.tolist() == [1, 2, 1]
    assert result.precision.tolist() == [0.5, 1, 1]
    assert result.recall.tolist() == [1, 0.5, 1]
    assert result.f1 == pytest.approx([2 / 3, 2 / 3, 1])
    assert result.auroc == pytest.approx([2 / 3, 3 / 4, 1])
    # 0.5…0.75 holds confidences 0.6, 0.65, 0.7 with two right; 0.75…1 holds 0.8, right
    assert result.bins.count.tolist() == [0, 0, 3, 1]
    assert result.bins.confidence[2:] == pytest.approx([1.95 / 3, 0.8])
    assert result.bins.accuracy[2:] == pytest.approx([2 / 3, 1])
    assert result.ece == pytest.approx(3 / 4 * (2 / 3 - 1.95 / 3) + 1 / 4 * (1 - 0.8))
    assert result.predicted.tolist() == [0, 0, 1, 2]
    assert result.confidence == pytest.approx([0.6, 0.65, 0.7, 0.8])


def test_agrees_with_scikit_learn(sample: tuple[Tensor, Tensor]) -> None:
    logits, labels = sample
    result = measure(logits, labels, bins=15)
    y, p = labels.numpy(), logits.double().softmax(1).numpy()
    precision, recall, f1, support = sk.precision_recall_fscore_support(y, p.argmax(1))
    assert result.loss == pytest.approx(sk.log_loss(y, p))
    assert result.acc == sk.accuracy_score(y, p.argmax(1))
    assert result.precision == pytest.approx(precision)
    assert result.recall == pytest.approx(recall)
    assert result.f1 == pytest.approx(f1)
    assert result.support.tolist() == support.tolist()
    assert result.auroc == pytest.approx([sk.roc_auc_score(y == k, p[:, k]) for k in range(5)], abs=2e-7)
    summary = result.summary()
    assert summary["f1"] == pytest.approx(sk.f1_score(y, p.argmax(1), average="macro"), abs=1e-6)
    assert summary["auroc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"), abs=1e-6)
    interval = binomtest(round(result.acc * 600), 600).proportion_ci(method="wilson")
    assert (result.acc_low, result.acc_high) == pytest.approx((interval.low, interval.high))


def test_the_same_set_gives_the_same_digits(sample: tuple[Tensor, Tensor]) -> None:
    first, second = (json.dumps([m.summary(), m.per_class()]) for m in (measure(*sample, 15), measure(*sample, 15)))
    assert first == second


@pytest.mark.parametrize(("right", "total"), [(0, 10), (10, 10), (3, 7), (9_953, 10_000), (1, 1)])
def test_wilson(right: int, total: int) -> None:
    expected = binomtest(right, total).proportion_ci(method="wilson")
    assert wilson(right, total) == pytest.approx((expected.low, expected.high))


def test_wilson_of_nothing_is_unknown() -> None:
    low, high = wilson([1, 0], [2, 0])
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == [False, True]


def test_logits_that_look_like_probabilities_are_logits_all_the_same() -> None:
    result = measure(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1]), bins=10)
    assert result.confidence == pytest.approx([1 / (1 + math.exp(-0.8)), 1 / (1 + math.exp(-0.6))])


def test_a_small_calibration_error_over_many_images() -> None:
    """Where float32 sums are off by more than the error itself."""
    logits = torch.zeros(55_000, 10)
    logits[:, 0] = torch.linspace(12, 16, 55_000)
    result = measure(logits, torch.zeros(55_000, dtype=torch.int64), bins=15)
    assert result.ece == pytest.approx(float((1 - logits.double().softmax(1)[:, 0]).mean()), rel=1e-6)
    assert result.ece < 2e-5


def test_a_class_without_images_has_no_measures_and_is_left_out_of_the_means() -> None:
    # class 1 has no images, but is predicted once; class 2 has one, and is never predicted
    logits = torch.eye(4)[[0, 1, 3, 3]] * 5
    result = measure(logits, torch.tensor([0, 0, 2, 3]), bins=15)
    rows = result.per_class()
    assert rows[1] == {"precision": None, "recall": None, "f1": None, "auroc": None, "support": 0}
    assert rows[2] | {"auroc": 0} == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "auroc": 0, "support": 1}
    assert result.summary()["precision"] == pytest.approx((1 + 0 + 0.5) / 3, abs=1e-6)
    assert result.summary()["recall"] == pytest.approx((0.5 + 0 + 1) / 3, abs=1e-6)


def test_a_set_of_one_class_has_no_auroc() -> None:
    result = measure(torch.tensor([[2.0, 0], [0, 1]]), torch.tensor([0, 0]), bins=1)
    assert np.isnan(result.auroc).all()
    summary: dict[str, Any] = result.summary()
    assert summary["auroc"] is None
    assert summary["recall"] == 0.5
    json.dumps(summary, allow_nan=False)
    assert all(set(row) == {*PER_CLASS, "support"} for row in result.per_class())


def test_a_label_that_is_no_class_is_refused() -> None:
    with pytest.raises(IndexError, match="2 is out of bounds"):
        measure(torch.zeros(1, 2), torch.tensor([2]), bins=15)
