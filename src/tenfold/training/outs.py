"""What the train stage leaves behind: the best weights, the history, and the summary of the network."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.utilities.deepspeed import convert_zero_checkpoint_to_fp32_state_dict
from pytorch_lightning.utilities.model_summary.model_summary import ModelSummary
from torch import Tensor

from tenfold import paths
from tenfold.modeling import checkpoint
from tenfold.modeling.networks import NetworkSpec, build
from tenfold.modeling.predictor import Predictor
from tenfold.params import Params
from tenfold.training.history import History
from tenfold.training.tricks import effective_precision

SHAPING = {
    "learning_rate",
    "batch_size",
    "max_epochs",
    "optimizer",
    "schedule",
    "swa",
    "ema_decay",
    "label_smoothing",
    "augment",
}


def write(spec: NetworkSpec, best: Path, history: History, params: Params) -> None:
    """Write the best weights, which lie in the checkpoint `best`, the history and the summary of the network."""
    network = build(spec)  # a new one: that of the training may be divided among devices
    network.load_state_dict({name.removeprefix("network."): tensor for name, tensor in _weights(best).items()})
    with paths.writing(paths.BEST_CHECKPOINT) as file:
        checkpoint.save(file, network, spec, settings(params))
    with paths.writing(paths.TRAIN_REPORT) as folder:
        folder.mkdir()
        history.write(folder / paths.HISTORY.name)
        summary = ModelSummary(Predictor(network, spec), max_depth=-1)
        (folder / "network.txt").write_text(f"{summary}\n", encoding="utf-8")


def _weights(best: Path) -> dict[str, Tensor]:
    if best.is_dir():  # DeepSpeed's: a file per process
        with tempfile.TemporaryDirectory() as folder:
            content = convert_zero_checkpoint_to_fp32_state_dict(best, Path(folder) / "whole.ckpt")
    else:
        content = torch.load(best, map_location="cpu", weights_only=True)
    weights: dict[str, Tensor] = content["state_dict"]
    return weights


def settings(params: Params) -> dict[str, Any]:
    """What shaped the weights, for whoever finds the file alone."""
    return {"seed": params.seed, "precision": effective_precision(params.train)} | params.train.model_dump(
        mode="json", include=SHAPING
    )
