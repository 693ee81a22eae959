"""A script for test_distributed.py: how many values of weights, gradients and optimizer state each process holds.

python tests/sharded_sizes.py WIDTH, in a checkout that is split; writes `sizes-RANK.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor

from tenfold.data.summary import Summary
from tenfold.params import Params
from tenfold.training import tricks
from tenfold.training.factory import build_classifier


class Sizes(Callback):
    """Counts after the first step."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *arguments: Any) -> None:
        parameters = list(pl_module.network.parameters())  # type: ignore[union-attr]
        (optimizer,) = trainer.optimizers
        states = [value for state in optimizer.state.values() for value in state.values() if value.numel() > 1]
        found = {
            "weights": held(parameters),
            "gradients": held(parameter.grad for parameter in parameters),
            "optimizer": held(states),
        }
        Path(f"sizes-{trainer.global_rank}.json").write_text(json.dumps(found))


def held(tensors: Iterable[Any]) -> int:
    """Values in this process's memory."""
    local: list[Tensor] = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() for tensor in local)


def main() -> None:
    """One step of training on two processes."""
    torch.set_num_threads(1)
    params = Params.load()
    model = params.model.model_copy(update={"width": int(sys.argv[1])})
    train = params.train.model_copy(update={"devices": 2, "strategy": "sharded", "max_epochs": 1})
    params = params.model_copy(update={"train": train, "model": model})
    seed_everything(0, verbose=False)
    flags = tricks.training_flags(train) | {"enable_progress_bar": False}
    trainer = tricks.build_trainer(
        train,
        logger=False,
        enable_checkpointing=False,
        limit_train_batches=1,
        limit_val_batches=0,
        callbacks=[Sizes()],
        **flags,
    )
    module = build_classifier(params, Summary.load(), 0.01, scheduled=True)
    trainer.fit(module, datamodule=tricks.build_data(params, 32))


if __name__ == "__main__":
    main()
