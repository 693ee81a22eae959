"""The tricks: each a key of `train` in `params.yaml`, turned here into what Lightning and torch understand."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.profilers import AdvancedProfiler, Profiler, PyTorchProfiler, SimpleProfiler

from tenfold.data.datamodule import ImageData
from tenfold.errors import TenfoldError
from tenfold.modeling.networks import PixelNetwork
from tenfold.params import Params, Train
from tenfold.training.allocator import keep_freed_memory
from tenfold.training.quiet import quieten
from tenfold.training.strategies import build_strategy, device_count

Precision = Literal["32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"]


def device_kind(train: Train) -> str:
    """The kind of device that training runs on here: `cpu`, `cuda`, `mps`, `tpu`, …"""
    if train.accelerator in ("cpu", "tpu"):
        return train.accelerator
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found.type if found else "cpu"


def effective_precision(train: Train) -> Precision:
    """The precision that `auto` stands for: bf16 where the hardware's flags promise it fast, never by timing.

    Raises:
        TenfoldError: 16-bit floats are asked for on a CPU (Lightning would quietly take bf16).
    """
    kind = device_kind(train)
    if train.precision == "16-mixed" and kind == "cpu":
        raise TenfoldError(
            "train.precision: '16-mixed' needs a GPU, and none is to be used here. "
            "Allowed on a CPU: 'auto', '32-true', 'bf16-mixed', 'bf16-true', '64-true'"
        )
    if train.precision != "auto":
        return train.precision
    if kind == "cpu":
        flags = torch.cpu.get_capabilities()
        fast = any(flags.get(flag) for flag in ("avx512_bf16", "amx_bf16", "arm_bf16"))
    else:
        fast = kind == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if fast else "32-true"


def build_trainer(train: Train, **flags: Any) -> Trainer:
    """A Lightning Trainer with the configured hardware, precision and step; quiet, and leaving no files behind.

    Raises:
        TenfoldError: this machine has not the accelerator or the devices that are asked for.
    """
    quieten()
    keep_freed_memory()
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # 3 % for nothing read
    if flags.get("num_nodes", 1) > 1 and not {"MASTER_ADDR", "SLURM_JOB_ID"} & set(os.environ):
        raise TenfoldError(
            f"train.num_nodes: {train.num_nodes} hosts, but nothing says where the first is. Start the stage on each "
            "host under torchrun or SLURM, or set it to 1"
        )
    try:
        return Trainer(
            accelerator=train.accelerator,
            precision=effective_precision(train),
            deterministic=train.deterministic,
            default_root_dir=tempfile.gettempdir(),
            enable_model_summary=False,
            num_sanity_val_steps=0,
            log_every_n_steps=10,
            use_distributed_sampler=False,  # the batches are dealt out to the ranks by ImageData
            accumulate_grad_batches=train.accumulate_grad_batches,
            gradient_clip_val=train.gradient_clip_val,
            gradient_clip_algorithm=train.gradient_clip_algorithm,
            **flags,
        )
    except (MisconfigurationException, ModuleNotFoundError, RuntimeError, ValueError) as error:
        raise TenfoldError(
            f"train.accelerator: {train.accelerator!r} with train.devices: {train.devices!r} is not to be had on this "
            f"machine ({error}). Use 'auto' with 1"
        ) from None


def check_steps(train: Train, data: ImageData) -> None:
    """Refuse a training that would not be what its settings say.

    Raises:
        TenfoldError: a batch would be more than all images, or an optimizer step more than an epoch.
    """
    images = len(data.train_set)
    if data.batch_size > images:
        raise TenfoldError(f"train.batch_size: {data.batch_size} is over the {images} training images")
    devices = train.num_nodes * device_count(train)
    if data.batch_size * devices > images:
        raise TenfoldError(
            f"train.batch_size: {data.batch_size} for each of {devices} devices is over the {images} training images: "
            "lower it, or train.devices"
        )
    if devices > len(data.val_set):
        raise TenfoldError(
            f"train.devices: {devices} in all are over the {len(data.val_set)} validation images: lower it, or raise "
            "split.val_size"
        )
    if train.accumulate_grad_batches > (batches := images // (data.batch_size * devices)):
        raise TenfoldError(
            f"train.accumulate_grad_batches: {train.accumulate_grad_batches} is over the {batches} batches of an epoch"
        )


def training_flags(train: Train) -> dict[str, Any]:
    """Trainer arguments that belong to the whole training, not to the hardware alone."""
    return {
        "enable_progress_bar": sys.stdout.isatty(),  # in a log, the history announces each epoch in a line instead
        "devices": train.devices,
        "num_nodes": train.num_nodes,
        "strategy": build_strategy(train),
        "max_epochs": train.max_epochs,
        "check_val_every_n_epoch": train.check_val_every_n_epoch,
    }


class BestCheckpoints(ModelCheckpoint):
    """Keeps the best, of the epochs from `first` on: with SWA, those before are of other weights than it averages."""

    def __init__(self, *arguments: Any, first: int, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._first = first

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, if this epoch counts."""
        if trainer.current_epoch >= self._first:
            super().on_train_epoch_end(trainer, pl_module)


class StopEarly(EarlyStopping):
    """Early stopping by the validations from epoch `first` on."""

    def __init__(self, monitor: str, first: int, **more: Any) -> None:
        super().__init__(monitor, check_on_train_epoch_end=False, **more)
        self._first = first

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge, if this epoch counts."""
        if trainer.current_epoch >= self._first:
            super().on_validation_end(trainer, pl_module)


def checkpointing(train: Train, folder: Path) -> tuple[ModelCheckpoint, ModelCheckpoint]:
    """Keep the best checkpoints by `train.monitor`, and the last two, in `folder`; their names sort by epoch.

    They are written when there has been a validation.

    Returns:
        The keeper of the best, and that of the last, which goes second: what it saves then includes the other's state.
        (`save_last` saves nothing at the end of an epoch that is not among the best.)
    """
    common: dict[str, Any] = {
        "auto_insert_metric_name": False,
        "save_on_train_epoch_end": True,
        "every_n_epochs": train.check_val_every_n_epoch,
        "enable_version_counter": False,  # an epoch that is done again takes the place of what was saved of it
    }
    best = BestCheckpoints(
        folder,
        filename="{epoch:05d}-best",
        monitor=train.monitor,
        mode=_mode(train),
        save_top_k=train.save_top_k,
        first=train.first_averaged_epoch or 0,
        **common,
    )
    last = ModelCheckpoint(folder, filename="{epoch:05d}-last", monitor="step", mode="max", save_top_k=2, **common)
    return best, last


def profiler(train: Train, folder: Path) -> Profiler | None:
    """The profiler of `train.profiler`, which writes its report to `folder`."""
    kinds = {"simple": SimpleProfiler, "advanced": AdvancedProfiler, "pytorch": PyTorchProfiler}
    return kinds[train.profiler](folder, "profile") if train.profiler else None


def stopping(train: Train) -> list[Callback]:
    """Early stopping, if there is to be any."""
    chosen, first = train.early_stopping, train.first_averaged_epoch or 0
    if chosen.patience is None:
        return []
    return [
        StopEarly(train.monitor, min_delta=chosen.min_delta, patience=chosen.patience, mode=_mode(train), first=first)
    ]


def prepare_network(train: Train, network: PixelNetwork) -> None:
    """Bring a network into the form that trains fastest; what it computes stays the same.

    Raises:
        TenfoldError: it is to be compiled, and there is no compiler.
    """
    if train.channels_last:  # weights of that layout make convolutions choose it for all that follows
        network.to(memory_format=torch.channels_last)
    network.checkpoint_activations = train.activation_checkpointing
    if train.compile:
        compilers = [os.environ.get("CXX", "c++"), "g++", "clang++"]
        if not any(map(shutil.which, compilers)):
            raise TenfoldError(
                f"train.compile: there is no C++ compiler ({', '.join(compilers)}). Install one, or set it to false"
            )
        network.layers.compile()


def build_data(params: Params, batch_size: int) -> ImageData:
    """The data module, with the loader's settings resolved."""
    train = params.train
    return ImageData(batch_size, train.eval_batch_size, params.seed, params.data.backend, **loader_settings(train))


def loader_settings(train: Train) -> dict[str, Any]:
    """Arguments of torch's `DataLoader`. What cannot work here is left out, with a line that says so."""
    workers = 0 if train.num_workers == "auto" else train.num_workers
    on_gpu = device_kind(train) == "cuda"
    settings: dict[str, Any] = {
        "num_workers": workers,
        "pin_memory": on_gpu if train.pin_memory == "auto" else train.pin_memory,
        "persistent_workers": workers > 0 if train.persistent_workers == "auto" else train.persistent_workers,
        "prefetch_factor": None if train.prefetch_factor == "auto" else train.prefetch_factor,
    }
    useless = {
        "pin_memory": (not on_gpu, "there is no GPU to copy to"),
        "persistent_workers": (not workers, "there are no loader processes (train.num_workers)"),
        "prefetch_factor": (not workers, "there are no loader processes (train.num_workers)"),
    }
    for key, (here, why) in useless.items():
        if settings[key] and here:
            _say(f"train.{key}: {settings[key]} has no effect: {why}")
            settings[key] = None if key == "prefetch_factor" else False
    return settings


@rank_zero_only
def _say(line: str) -> None:
    print(line, flush=True)


def _mode(train: Train) -> str:
    return "max" if train.monitor.endswith("acc") else "min"
