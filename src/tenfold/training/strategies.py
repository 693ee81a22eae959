"""How several devices, or processes on a CPU, train one network."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed
from pytorch_lightning import Trainer
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from torch.distributed.fsdp import FSDPModule, fully_shard

from tenfold.errors import TenfoldError
from tenfold.modeling.module import Classifier
from tenfold.params import Train

PATIENCE = timedelta(minutes=5)
"""How long a process waits for the others, of which one may have gone with its host, before all end with an error."""


def device_count(train: Train) -> int:
    """Devices on this host, or processes on a CPU."""
    if train.devices != "auto":
        return train.devices
    has_several = train.accelerator not in ("cpu", "tpu") and torch.accelerator.is_available()
    return torch.accelerator.device_count() if has_several else 1


def build_strategy(train: Train) -> Strategy | str:
    """What Lightning's Trainer takes for `train.strategy`. Checkpoints are whole, and but for DeepSpeed's of one file.

    Raises:
        TenfoldError: DeepSpeed is asked for and not installed.
    """
    several = (train.num_nodes > 1 or device_count(train) > 1) and train.accelerator != "tpu"
    match train.strategy:
        case "ddp" | "auto" if several:
            return DDPStrategy(timeout=PATIENCE, gradient_as_bucket_view=True)
        case "sharded":
            return Sharded()
        case "fsdp":
            return FSDPStrategy(state_dict_type="full", timeout=PATIENCE)
        case "deepspeed" if find_spec("deepspeed") is None:
            raise TenfoldError(
                "train.strategy: 'deepspeed' needs the package of that name, which is not installed: "
                "pip install deepspeed (the extra `deepspeed`), or use 'sharded'"
            )
        case "deepspeed":
            return "deepspeed_stage_2"
        case name:
            return name


@contextmanager
def together(trainer: Trainer) -> Iterator[None]:
    """An error here ends the processes that Lightning has started, too; one of their meeting is told in plain words.

    Raises:
        TenfoldError: the processes could not meet, or one of them has gone.
    """
    try:
        with _explained():
            yield
    except BaseException:
        if trainer.strategy.launcher is not None:
            trainer.strategy.launcher.kill(signal.SIGKILL)  # a process that waits for this one hears nothing else
        raise


@contextmanager
def _explained() -> Iterator[None]:
    place = f"{os.environ.get('MASTER_ADDR', '127.0.0.1')} port {os.environ.get('MASTER_PORT', '(free)')}"
    try:
        yield
    except torch.distributed.DistNetworkError as error:
        why = "the port is in use" if "EADDRINUSE" in str(error) else str(error).splitlines()[0]
        raise TenfoldError(
            f"the processes of the training cannot meet at {place}: {why}. Set MASTER_PORT to a free one"
        ) from None
    except RuntimeError as error:
        if not re.search(r"gloo|NCCL|Connection (closed|reset) by peer", str(error)):
            raise
        raise TenfoldError(
            f"another process of the training has gone ({str(error).splitlines()[0]}). Its own output says why. Start "
            "again: the training goes on after its last finished epoch"
        ) from None


class Sharded(ModelParallelStrategy):
    """Weights, gradients and optimizer state divided among all devices of all hosts (FSDP2)."""

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, timeout=PATIENCE)

    def setup_environment(self) -> None:
        """Divide among all, where Lightning's default is one part per host."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()


class ShardedClassifier(Classifier):
    """A classifier whose layers are divided among the devices, each gathered while it computes."""

    def configure_model(self) -> None:
        """Divide the layers; Lightning calls this on every device, with the same weights on each."""
        if isinstance(self.network, FSDPModule):
            return
        self.network.to(memory_format=torch.contiguous_format)  # `fully_shard` takes no other
        mesh: Any = self.device_mesh["data_parallel"]  # type: ignore[index]
        for layer in self.network.layers:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.network, mesh=mesh)
