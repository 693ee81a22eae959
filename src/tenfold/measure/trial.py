"""One training of `tenfold tricks`, in a process and a folder of its own: `python -m tenfold.measure.trial`.

The stages' own steps, without a store: split, tune, train, evaluate. Writes `result.json`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from pytorch_lightning.loggers.logger import DummyLogger

from tenfold import paths
from tenfold.data.datamodule import eval_loader
from tenfold.errors import TenfoldError
from tenfold.modeling.predictor import Predictor
from tenfold.params import Params
from tenfold.stages import evaluate, split, train, tune
from tenfold.training.quiet import predicting_trainer

RESULT = Path("result.json")


class Collected(DummyLogger):
    """Keeps all values of each metric."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, list[float]] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Keep them."""
        for name, value in metrics.items():
            self.values.setdefault(name, []).append(float(value))


def main() -> None:
    """Train with `params.yaml` of the working directory, on `data/raw` in it."""
    params = Params.load()
    if "LOCAL_RANK" not in os.environ:  # one of several processes finds these done
        split.run(params)
        _tune(params)
    collected = Collected()
    with TemporaryDirectory() as folder:
        train.fit(params, Path(folder), collected)
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        fit = {
            "fit_s": collected.values["time/fit_s"][-1],
            "samples_per_s": sorted(collected.values["throughput/samples_per_s"])[
                len(collected.values["throughput/samples_per_s"]) // 2
            ],
            "memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        }
        RESULT.write_text(json.dumps(fit | _evaluate(params)), encoding="utf-8")


def _tune(params: Params) -> None:
    if "auto" not in (params.train.learning_rate, params.train.batch_size):
        tune.run(params)
        return
    with paths.writing(paths.TUNE) as folder:
        folder.mkdir()
        tune.find(params, folder)


def _evaluate(params: Params) -> dict[str, float]:
    predictor, trainer = Predictor.load(paths.BEST_CHECKPOINT), predicting_trainer(params.evaluate.inference_mode)
    found: dict[str, float] = {}
    for part in ("val", "test"):
        batches = eval_loader(paths.SPLIT / part, params.evaluate.batch_size, params.data.backend)
        started = time.perf_counter()
        logits = evaluate.predict(trainer, predictor, batches, part)
        found |= {"evaluate_s": time.perf_counter() - started}
        labels = batches.dataset.labels  # type: ignore[attr-defined]
        found[f"{part}_acc"] = float((logits.argmax(1) == labels).double().mean())
    return found


if __name__ == "__main__":
    try:
        main()
    except TenfoldError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
