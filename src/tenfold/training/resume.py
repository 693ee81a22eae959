"""Going on after an interruption: checkpoints at epoch ends, in a folder named after all that the weights depend on.

The folder lies outside the DVC outs, since DVC deletes those before a stage runs, and is deleted when the training has
succeeded, so that a forced training really trains.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.callbacks.early_stopping import EarlyStoppingReason
from pytorch_lightning.utilities import rank_zero_only

from tenfold import paths
from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.training import identity
from tenfold.training.tricks import device_kind, effective_precision

FOLDERS = Path(".tenfold/resume")


def key(params: Params) -> str:
    """The SHA-256 of what the weights depend on: deps and params of the train stage in `dvc.yaml`, and the machine.

    Raises:
        TenfoldError: a dep is missing.
    """
    parts: dict[str, Any] = identity.inputs("train") | identity.code("train")
    parts |= identity.settings("train", params.flat())
    parts["machine"] = [torch.get_num_threads(), device_kind(params.train), effective_precision(params.train)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@contextmanager
def resume_folder(params: Params) -> Iterator[Path]:
    """The folder of this training, for this process alone; deleted when the block ends well, else kept to go on from.

    Raises:
        TenfoldError: another process is at the same training.
    """
    folder = paths.home() / FOLDERS / key(params)
    if getattr(rank_zero_only, "rank", 0) > 0:
        yield folder
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise TenfoldError(
            f"{lock.lock_file}: another process is at this very training (same data, settings and code). "
            "Wait for it to end, or end it"
        ) from None
    done = folder.with_suffix(".done")
    try:
        shutil.rmtree(done, ignore_errors=True)
        _tell_of_others(folder)
        folder.mkdir(exist_ok=True)
        yield folder
        folder.replace(done)  # at once, so that a kill leaves no half of it
        shutil.rmtree(done)
        Path(lock.lock_file).unlink(missing_ok=True)
    finally:
        lock.release()


def newest_checkpoint(folder: Path) -> tuple[Path | None, int]:
    """The checkpoint to go on from, and the number of epochs done; None and 0 where there is none.

    One that is damaged, or whose best weights are, is passed over with a message.
    """
    for file in sorted(folder.glob("*.ckpt"), reverse=True):
        try:
            content = _load(file)
            for state in content["callbacks"].values():
                if best := state.get("best_model_path"):
                    _load(Path(best))
        except Exception as error:  # torch raises many kinds for a damaged file
            print(f"train: {file.name} of an interrupted training cannot be used ({type(error).__name__}: {error})")
            continue
        done = int(content["epoch"]) + 1
        print(f"train: resuming after epoch {done}", flush=True)
        return file, done
    return None, 0


class CheckpointFiles(TorchCheckpointIO):
    """Writes whole or not at all; Lightning copies from the temporary folder, where that is on another file system."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write, down to the disk, then rename."""
        try:
            with paths.writing(Path(path)) as temporary, temporary.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
        except (RuntimeError, OSError) as error:
            cause = (
                error.__context__
            )  # torch raises its own error in place of a signal, or a full disk, while it writes
            if isinstance(cause, KeyboardInterrupt | SystemExit):
                raise cause from None
            if why := next((e.strerror for e in (error, cause) if isinstance(e, OSError)), None):
                raise TenfoldError(f"{path}: the checkpoint cannot be written ({why})") from None
            raise


class SameEpoch(Callback):
    """All processes of a training go on after the same epoch, or not at all: with others they would wait for ever.

    Args:
        done: epochs, as this process has found.
    """

    def __init__(self, done: int) -> None:
        self._done = done

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Compare, before any checkpoint is loaded.

        Raises:
            TenfoldError: they differ.
        """
        found = trainer.strategy.all_gather(torch.tensor(self._done, device=trainer.strategy.root_device)).flatten()
        if len(set(found.tolist())) > 1:
            raise TenfoldError(
                f"{FOLDERS}: the processes of this training have checkpoints of different epochs ({found.tolist()}, by "
                "rank). The hosts must share the project's folder and be of one kind (threads, bf16); or delete the "
                "folder on all of them"
            )


class StayStopped(Callback):
    """A training that was interrupted after early stopping had ended it is not trained further when it is resumed."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop again."""
        for callback in trainer.early_stopping_callbacks:
            if isinstance(callback, EarlyStopping) and callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED:
                trainer.should_stop = True


def _load(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return content


def _tell_of_others(folder: Path) -> None:
    """Trainings of other settings are kept: they go on when their settings, data and code are back."""
    others = [other for other in folder.parent.iterdir() if other.is_dir() and not other.suffix and other != folder]
    if others:
        size = sum(file.stat().st_size for other in others for file in other.rglob("*") if file.is_file())
        print(
            f"train: {len(others)} interrupted training(s) of other settings kept in {folder.parent} "
            f"({size / 1e6:.1f} MB); delete what is not to go on"
        )
