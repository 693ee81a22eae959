"""One training of `tenfold tricks`, in a process and a folder of its own: `python -m tenfold.measure.trial`.

The stages' own steps, without a store: split, tune, train, evaluate. Writes `result.json`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from pytorch_lightning.loggers.logger import DummyLogger

from tenfold import paths
from tenfold.data.datamodule import eval_loader
from tenfold.errors import TenfoldError
from tenfold.modeling.predictor import Predictor
from tenfold.params import Params
from tenfold.stages import evaluate, split, train, tune
from tenfold.training.quiet import predicting_trainer

RESULT = Path("result.json")
PEAK = Path("/proc/self/clear_refs")
"""Written to, it has Linux measure the most memory of a process anew."""


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
    if "LOCAL_RANK" not in os.environ:  # one of several processes finds it done
        _apart(lambda: _prepare(params))
    collected, memory = Collected(), Memory()
    with TemporaryDirectory() as folder:
        train.fit(params, Path(folder), collected)
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        fit = {
            "fit_s": collected.values["time/fit_s"][-1],
            "samples_per_s": statistics.median(collected.values["throughput/samples_per_s"]),
            "memory_mb": memory.taken_mb(),
        }
        RESULT.write_text(json.dumps(fit | _evaluate(params)), encoding="utf-8")


class Memory:
    """What this process takes at most from here on, beyond what it has (on Linux; elsewhere: in all)."""

    def __init__(self) -> None:
        self._before = 0
        if PEAK.exists():
            PEAK.write_text("5", encoding="ascii")
            self._before = psutil.Process().memory_info().rss

    def taken_mb(self) -> float:
        """In MB."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if PEAK.exists():
            most = 1024 * int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))[0])
        return (most - self._before) / 1e6


def _apart(work: Callable[[], None]) -> None:
    """Do some work in a copy of this process, so that its memory is not this one's; end with its status if it fails."""
    copy = multiprocessing.get_context("fork").Process(target=_told, args=(work,))
    copy.start()
    copy.join()
    if copy.exitcode:
        sys.exit(copy.exitcode)


def _told(work: Callable[[], None]) -> None:
    try:
        work()
    except TenfoldError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def _prepare(params: Params) -> None:
    split.run(params)
    _tune(params)


def _tune(params: Params) -> None:
    if "auto" not in (params.train.learning_rate, params.train.batch_size):
        tune.run(params)
        return
    with paths.writing(paths.TUNE) as folder:
        folder.mkdir()
        tune.find(params, folder)


def _evaluate(params: Params) -> dict[str, float]:
    predictor, trainer = Predictor.load(paths.BEST_CHECKPOINT), predicting_trainer(params.evaluate.inference_mode)
    found, seconds = dict[str, float](), 0.0
    for part in ("val", "test"):
        batches = eval_loader(paths.SPLIT / part, params.evaluate.batch_size, params.data.backend)
        started = time.perf_counter()
        logits = evaluate.predict(trainer, predictor, batches, part)
        seconds += time.perf_counter() - started
        labels = batches.dataset.labels  # type: ignore[attr-defined]
        found[f"{part}_acc"] = float((logits.argmax(1) == labels).double().mean())
    return found | {"evaluate_s": seconds}


if __name__ == "__main__":
    _told(main)
