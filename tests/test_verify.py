"""`tenfold verify`, with real trainings in processes of their own."""

from __future__ import annotations

import pytest

from tests.checkout import Pipeline

pytestmark = pytest.mark.timeout(600)


def test_bit_exact(pipeline: Pipeline) -> None:
    checkout = pipeline.checkout
    before = checkout.run("git", "status", "--porcelain"), checkout.runs("tenfold")
    checkout.edit("max_epochs: 6", "max_epochs: 2")
    try:
        output = checkout.tenfold("verify", OMP_NUM_THREADS="1")
    finally:
        checkout.edit("max_epochs: 2", "max_epochs: 6")
    assert "train: resuming after epoch 1" in output
    assert "verify: bit-exact: 44 steps with the same loss three times" in output
    assert "another number of threads" in output
    assert (checkout.run("git", "status", "--porcelain"), checkout.runs("tenfold")) == before


def test_a_planted_difference_is_found(pipeline: Pipeline) -> None:
    """The second epoch's seed is another in each process."""
    checkout = pipeline.checkout
    callbacks = "src/tenfold/training/callbacks.py"
    text = checkout.read(callbacks)
    checkout.edit("max_epochs: 6", "max_epochs: 2")
    checkout.edit(
        "torch.manual_seed\\(seed\\)", "torch.manual_seed(seed + trainer.current_epoch * time.time_ns())", callbacks
    )
    try:
        output = checkout.tenfold("verify", status=1, OMP_NUM_THREADS="1")
    finally:
        checkout.edit("max_epochs: 2", "max_epochs: 6")
        (checkout.root / callbacks).write_text(text, encoding="utf-8")
    assert "verify: NOT bit-exact: first at epoch 2, step 1: loss 0." in output
    assert "look at the loader and the augmentation" in output
    assert "3 of 3" not in output
