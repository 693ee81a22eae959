"""`tenfold verify`, with real trainings in processes of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tenfold import paths, verify
from tests.checkout import PROJECT, Pipeline

pytestmark = pytest.mark.timeout(600)


def test_bit_exact(pipeline: Pipeline) -> None:
    checkout = pipeline.checkout
    before = checkout.run("git", "status", "--porcelain"), checkout.runs("tenfold")
    checkout.edit("max_epochs: 4", "max_epochs: 2")
    try:
        output = checkout.tenfold("verify", OMP_NUM_THREADS="1")
    finally:
        checkout.edit("max_epochs: 2", "max_epochs: 4")
    assert "train: resuming after epoch 1" in output
    assert "verify: bit-exact: 44 steps with the same loss three times" in output
    assert "NOT tested" not in output
    assert "another number of threads" in output
    assert (checkout.run("git", "status", "--porcelain"), checkout.runs("tenfold")) == before


def test_a_planted_difference_is_found(pipeline: Pipeline) -> None:
    """The second epoch's seed is another in each process."""
    checkout = pipeline.checkout
    callbacks = "src/tenfold/training/callbacks.py"
    text = checkout.read(callbacks)
    checkout.edit("max_epochs: 4", "max_epochs: 2")
    checkout.edit(
        "torch.manual_seed\\(seed\\)", "torch.manual_seed(seed + trainer.current_epoch * time.time_ns())", callbacks
    )
    try:
        output = checkout.tenfold("verify", status=1, OMP_NUM_THREADS="1")
    finally:
        checkout.edit("max_epochs: 2", "max_epochs: 4")
        (checkout.root / callbacks).write_text(text, encoding="utf-8")
    assert "verify: NOT bit-exact: first at epoch 2, step 1: loss 0." in output
    assert "look at the loader and the augmentation" in output
    assert "3 of 3" not in output


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_training_of_one_epoch_is_not_said_to_be_resumed(
    epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(PROJECT / paths.PARAMS, paths.PARAMS)
    for needed in (paths.SUMMARY, paths.TUNE_RESULT):
        needed.parent.mkdir(parents=True)
        needed.touch()
    steps = [verify.Step(str(n // 4), str(n % 4), "", "", "", "", f"{n}.0") for n in range(4 * epochs)]
    records: dict[Path, list[verify.Step]] = {}

    def train(project: Path, *kill_at: str) -> list[verify.Step]:
        for file in (paths.BEST_CHECKPOINT, paths.HISTORY):
            (project / file).parent.mkdir(parents=True, exist_ok=True)
            (project / file).touch()
        record = records.setdefault(project, [])
        done = [step for step in record if step.epoch == "0"] if epochs > 1 else []
        stop = next((i for i, step in enumerate(steps) if step[:2] == kill_at), len(steps))
        record += steps[len(done) : stop + 1]
        return record

    monkeypatch.setattr(verify, "_train", train)
    assert verify.verify()
    assert ("resuming was NOT tested" in capsys.readouterr().out) == (epochs == 1)
