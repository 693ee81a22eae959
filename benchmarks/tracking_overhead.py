"""What tracking costs: the time of a fit that logs 100 metrics a second, with a run and without one, in turns.

Prints a table; ends with status 1 if the medians differ by more than 2 %.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from contextlib import nullcontext
from pathlib import Path

ALLOWED = 0.02
METRICS_PER_STEP, STEPS_PER_S = 5, 20


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="fits of each kind that are counted")
    parser.add_argument("--seconds", type=float, default=20.0, help="about how long a fit takes")
    chosen = parser.parse_args()
    params = Path("params.yaml").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("params.yaml").write_text(params, encoding="utf-8")
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        steps, work = int(chosen.seconds * STEPS_PER_S), calibrate(1 / STEPS_PER_S)
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(chosen.rounds + 1):
            for tracked in (True, False) if number % 2 else (False, True):
                seconds = fit(steps, work, tracked)
                if number:  # the first of each is a warm-up
                    times[tracked].append(seconds)
    report(times, METRICS_PER_STEP * steps)


def calibrate(seconds: float) -> int:
    """How many matrix products take that long here."""
    import torch

    torch.set_num_threads(1)
    count, matrix = 0, torch.randn(256, 256)
    started = time.perf_counter()
    while time.perf_counter() - started < 20 * seconds:
        matrix = (matrix @ matrix).clamp(-1, 1)
        count += 1
    return max(1, count // 20)


def fit(steps: int, work: int, tracked: bool) -> float:
    """Seconds that a fit takes, with what it waits for at its end; the start of the run is left out."""
    import torch
    from pytorch_lightning import LightningModule, Trainer
    from torch.utils.data import DataLoader, TensorDataset

    from tenfold.tracking import runs
    from tenfold.tracking.logger import RunLogger

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.matrix = torch.randn(256, 256)

        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            for _ in range(work):
                self.matrix = (self.matrix @ self.matrix).clamp(-1, 1)
            loss: torch.Tensor = self.layer(batch[0]).mean()
            self.log_dict({f"metric/{number}": loss + number for number in range(METRICS_PER_STEP)})
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    warnings.filterwarnings("ignore")
    with runs.open_run("tenfold", "benchmark") if tracked else nullcontext(runs.Run("")) as run:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            log_every_n_steps=1,
            logger=RunLogger(run),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        data = DataLoader(TensorDataset(torch.randn(steps, 2)), batch_size=1)
        started = time.perf_counter()
        trainer.fit(Module(), data)
        if run.journal:
            assert run.journal.flush()
        return time.perf_counter() - started


def report(times: dict[bool, list[float]], points: int) -> None:
    """Print the table, and judge."""
    print("tracking   fits   median s   lowest   highest")
    for tracked, name in ((False, "without"), (True, "with")):
        found = times[tracked]
        print(f"{name:9}  {len(found):5}  {statistics.median(found):9.3f}  {min(found):7.3f}  {max(found):8.3f}")
    without, with_it = statistics.median(times[False]), statistics.median(times[True])
    cost = with_it / without - 1
    print(f"{points / without:.0f} metrics a second; tracking costs {cost:+.1%} (allowed: {ALLOWED:.0%})")
    if cost > ALLOWED:
        sys.exit(1)


if __name__ == "__main__":
    main()
