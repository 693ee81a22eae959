"""Lightning without its advice and news; its warnings and errors stay, less those that are idle here."""

import logging
import warnings


def quieten() -> None:
    """Silence what no user of the project can act on. Call before a Trainer is built."""
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        "does not have many workers",  # arrays in memory need none
        "overridden `on_after_batch_transfer`",  # on purpose
        "smaller than the logging interval",  # epochs are logged whole
        "exists and is not empty",  # checkpoints of a training that is resumed
        "sync_dist=True",  # the metrics that are logged are of all ranks already
        "treespec, LeafSpec",  # Lightning's own use of torch
    ):
        warnings.filterwarnings("ignore", message=f".*{message}")
