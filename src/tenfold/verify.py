"""Prove that training is bit-exact: the same losses and weights twice, and once more across a SIGKILL and a resume.

As a module it is one of those trainings: `python -m tenfold.verify RECORD [EPOCH BATCH]`, which kills itself there.
"""

from __future__ import annotations

import csv
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from tenfold import paths
from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.tracking import runs
from tenfold.training.tricks import device_kind, effective_precision

CAUSES = {
    "batch": "the batch differs too: look at the loader and the augmentation",
    "torch": "torch's random numbers differ too",
    "numpy": "numpy's random numbers differ too",
    "python": "Python's random numbers differ too",
    "loss": "batch and random numbers are the same: look at the weights and the arithmetic",
}
LIMITS = """\
  Shown for this machine and these settings. Never bit-exact: another kind of processor, another number of threads,
  another version of torch, a GPU without deterministic kernels (docs/reproducibility.md)."""


class Step(NamedTuple):
    """What is recorded of a training step: the loss, exactly, and checksums of what could make it differ."""

    epoch: str
    number: str  # within the epoch
    batch: str
    torch: str
    numpy: str
    python: str
    loss: str

    @property
    def place(self) -> str:
        """For people, who count from 1."""
        return f"epoch {int(self.epoch) + 1}, step {int(self.number) + 1}"


class Recorder(Callback):
    """Appends each training step to a file.

    Args:
        file: gets one line per step, at once.
        kill_at: epoch and number of the step after which this process kills itself.
    """

    def __init__(self, file: Path, kill_at: tuple[int, ...] = ()) -> None:
        self.file, self.kill_at = file, kill_at

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the step."""
        if not trainer.is_global_zero:
            return
        content = (
            b"".join(part.cpu().numpy().tobytes() for part in batch),
            torch.get_rng_state().numpy().tobytes(),
            str(np.random.get_state()).encode(),
            str(random.getstate()).encode(),
        )
        checksums = (f"{zlib.crc32(part):08x}" for part in content)
        with self.file.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow([trainer.current_epoch, batch_idx, *checksums, float(outputs["loss"]).hex()])
        if (trainer.current_epoch, batch_idx) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def verify() -> bool:
    """Train three times in temporary copies of the project, and say what was found.

    Returns:
        Whether all losses and weights are the same.

    Raises:
        TenfoldError: the split or what tuning found is missing, or a training failed.
    """
    for needed in (paths.SUMMARY, paths.TUNE_RESULT):
        if not needed.is_file():
            raise TenfoldError(f"{needed}: missing, and verify trains with it. Make it: dvc repro tune")
    with tempfile.TemporaryDirectory(prefix="tenfold-verify-") as scratch:
        first, second, third = (Path(scratch) / name for name in ("first", "second", "third"))
        print("verify: 1 of 3: a training", flush=True)
        steps = _train(first)
        print("verify: 2 of 3: the same again, in a fresh process", flush=True)
        difference = _difference(first, second, steps, _train(second))
        if not difference:
            epoch = [step for step in steps if step.epoch == steps[len(steps) // 2].epoch]
            middle = epoch[len(epoch) // 2]
            print(f"verify: 3 of 3: the same, killed (SIGKILL) at {middle.place}, and started again", flush=True)
            _train(third, middle.epoch, middle.number)
            third_steps = _train(third)
            difference = _difference(first, third, steps, third_steps)
            anew = third_steps.count(steps[0]) > 1
        weights = runs.file_sha256(first / paths.BEST_CHECKPOINT)
    if difference:
        print(f"verify: NOT bit-exact: {difference}")
    else:
        print(f"verify: bit-exact: {len(steps)} steps with the same loss three times, and the same weights ({weights})")
        if anew:
            print("verify: resuming was NOT tested: the killed training had no whole epoch behind it, and began anew")
    train = Params.load().train
    print(f"  {platform.machine()}, {device_kind(train)}, {torch.get_num_threads()} threads, ", end="")
    print(f"{effective_precision(train)}, torch {torch.__version__}\n{LIMITS}")
    return not difference


def _train(project: Path, *kill_at: str) -> list[Step]:
    """Train in a copy of the project, without MLflow, in a fresh process."""
    if not project.exists():
        shutil.copytree("src", project / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("dvc.yaml", paths.PARAMS, paths.TUNE_RESULT):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, project / name)
        (project / paths.SPLIT.parent).mkdir()
        (project / paths.SPLIT).symlink_to(paths.SPLIT.resolve())
    environment = {name: value for name, value in os.environ.items() if name != "DVC_ROOT"} | {"PYTHONPATH": "src"}
    record = project / "steps.csv"
    command = [sys.executable, "-m", "tenfold.verify", str(record), *kill_at]
    status = subprocess.run(command, cwd=project, env=environment, check=False).returncode
    if status != (-signal.SIGKILL if kill_at else 0):
        raise TenfoldError(f"a training that verify started ended with {status}; its message stands above")
    with record.open(newline="", encoding="utf-8") as file:
        return [Step(*row) for row in csv.reader(file)]


def _difference(project: Path, other: Path, steps: list[Step], others: list[Step]) -> str:
    """The first step that differs and by how much, or what else does; empty: nothing."""
    expected = {step[:2]: step for step in steps}
    for step in others:
        before = expected.get(step[:2])
        if before is None:
            return f"{step.place} is in one training only"
        if step != before:
            one, two = float.fromhex(before.loss), float.fromhex(step.loss)
            cause = next(cause for name, cause in CAUSES.items() if getattr(step, name) != getattr(before, name))
            return f"first at {step.place}: loss {one:.9g} and {two:.9g} (by {abs(two - one):.2g}); {cause}"
    if len({step[:2] for step in others}) < len(expected):
        return "one training has fewer steps"
    for file in (paths.BEST_CHECKPOINT, paths.HISTORY):
        if (project / file).read_bytes() != (other / file).read_bytes():
            return f"the losses of all steps are the same, and {file} differs"
    return ""


if __name__ == "__main__":
    from tenfold.stages import train
    from tenfold.training.resume import resume_folder

    settings = Params.load()
    with resume_folder(settings) as folder:
        train.fit(settings, folder, watchers=[Recorder(Path(sys.argv[1]), tuple(map(int, sys.argv[2:])))])
