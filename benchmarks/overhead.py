"""What Lightning and MLflow cost on top of a bare loop: the same network, data, settings and batches, in turns.

The bare loop is plain torch: no Lightning, no metrics but those of validation, no checkpoint but the last weights.
The pipeline's fit has its MLflow run, its checkpoints and its curves. Both read the data from the disk, validate after
each epoch and write the weights. Timed from before the data is read until the weights are written, in one process.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

import torch

import lab
from tenfold import paths
from tenfold.data.datamodule import EvalBatches, ImageSet, TrainBatches
from tenfold.data.summary import Summary
from tenfold.modeling.optimizers import build_optimizer, build_schedule
from tenfold.params import Params
from tenfold.stages import train as stage
from tenfold.tracking import records, runs
from tenfold.tracking.logger import RunLogger
from tenfold.training.factory import build_classifier

ALLOWED = {"fast": 0.25, "balanced": 0.10}


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(ALLOWED))
    parser.add_argument("--rounds", type=int, default=5, help="fits of each kind that are counted")
    chosen = parser.parse_args()
    rows, failed = [], False
    for recipe in chosen.recipes:
        with lab.checkout(recipe) as project:
            project.run("dvc", "repro", "tune")
            os.chdir(project.root)
            pairs = [in_turns(Params.load(), number) for number in range(chosen.rounds + 1)][1:]  # the first warms up
            os.chdir(lab.PROJECT)
        cost = statistics.median(pipeline / bare for bare, pipeline in pairs) - 1
        rows.append([recipe, *(lab.spread(times) for times in zip(*pairs, strict=True)), f"{cost:+.1%}"])
        failed = failed or cost > ALLOWED.get(recipe, 1)
    lab.publish(
        "overhead",
        f"`benchmarks/overhead.py`, {chosen.rounds} fits of each kind in turns; seconds, median (lowest–highest). The "
        "cost is the median over the pairs.",
        ["recipe", "bare loop", "with Lightning and MLflow", "cost"],
        rows,
    )
    sys.exit(failed)


def in_turns(params: Params, number: int) -> tuple[float, float]:
    """Seconds of a bare fit and of one in the pipeline; which goes first changes with the number."""
    fits = (bare_fit, pipeline_fit)
    seconds = {fit: fit(params) for fit in (fits if number % 2 else fits[::-1])}
    return seconds[bare_fit], seconds[pipeline_fit]


def pipeline_fit(params: Params) -> float:
    """Seconds of the train stage's fit, within a run; the start of the run is left out."""
    with tempfile.TemporaryDirectory() as folder, runs.open_run("tenfold", "benchmark", folder=Path(folder)) as run:
        records.record_inputs(run, Path(), params)
        started = time.perf_counter()
        with redirect_stdout(io.StringIO()):
            stage.fit(params, Path(folder), RunLogger(run))
        return time.perf_counter() - started


def bare_fit(params: Params) -> float:
    """Seconds of the same training as a plain loop."""
    torch.use_deterministic_algorithms(False)
    started = time.perf_counter()
    train = stage.tuned(params).train
    assert train.learning_rate != "auto"
    assert train.batch_size != "auto"
    torch.manual_seed(params.seed)
    data, held_out = ImageSet(paths.SPLIT / "train"), ImageSet(paths.SPLIT / "val")
    network = build_classifier(params, Summary.load(), 0.0).network
    optimizer = build_optimizer(network.parameters(), train.learning_rate, train.optimizer)
    batches = TrainBatches(len(data), train.batch_size, params.seed)
    schedule = build_schedule(optimizer, train.learning_rate, train, len(batches))
    for epoch in range(train.max_epochs):
        network.train()
        batches.set_epoch(epoch)
        for positions in batches:
            lab.bare_step(train, network, optimizer, *data[positions])
            schedule.step()
        network.eval()
        with torch.inference_mode(), lab.autocast(train):
            for positions in EvalBatches(held_out, train.eval_batch_size):
                images, labels = held_out[positions]
                (network(images).argmax(1) == labels).sum()
    torch.save(network.state_dict(), "bare.pt")
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
