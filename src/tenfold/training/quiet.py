"""Lightning without its advice and news; its warnings and errors stay, less those that are idle here."""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings

from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import RichProgressBar


def quieten() -> None:
    """Silence what no user of the project can act on. Call before a Trainer is built."""
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # but why all processes of a training are about to be killed
    logging.getLogger("lightning_fabric.strategies.launchers.subprocess_script").setLevel(logging.INFO)
    for message in (
        "does not have many workers",  # arrays in memory need none
        "overridden `on_after_batch_transfer`",  # on purpose
        "smaller than the logging interval",  # epochs are logged whole
        "exists and is not empty",  # checkpoints of a training that is resumed
        "sync_dist=True",  # the metrics that are logged are of all ranks already
        "treespec, LeafSpec",  # Lightning's own use of torch
    ):
        warnings.filterwarnings("ignore", message=f".*{message}")


def predicting_trainer(inference_mode: bool = True) -> Trainer:
    """A Trainer that only predicts, in full precision, on the best device at hand; a bar on a terminal."""
    quieten()
    return Trainer(
        devices=1,
        precision="32-true",
        deterministic=True,
        inference_mode=inference_mode,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stdout.isatty(),
        callbacks=[RichProgressBar()] if sys.stdout.isatty() else None,
        default_root_dir=tempfile.gettempdir(),
    )
