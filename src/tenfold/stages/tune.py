"""Find what `learning_rate: auto` and `batch_size: auto` stand for."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenfold import paths
from tenfold.data.summary import Summary
from tenfold.params import Params

Found = dict[str, Any]


def run(params: Params) -> None:
    """Write `reports/tune/`: the values found, the curve and the table that they were read from."""
    train = params.train
    searched = train.learning_rate, train.batch_size, train.optimizer.weight_decay, train.augment.strength
    if "auto" not in searched:
        print("tune: learning_rate and batch_size are set to numbers: nothing to search for")
        with paths.writing(paths.TUNE) as folder:
            folder.mkdir()
            _write(folder, {"learning_rate": _given(train.learning_rate), "batch_size": _given(train.batch_size)})
        return

    from tenfold.tracking import records, runs
    from tenfold.tracking.provenance import PRECISION
    from tenfold.training.tricks import effective_precision

    title, tags = f"{Summary.load().dataset} {params.model.network}", {PRECISION: effective_precision(train)}
    with runs.open_run("tenfold-tune", title, tags=tags) as tracked:
        with paths.writing(paths.TUNE) as folder:
            folder.mkdir()
            if params.tune.search.trials:
                search(params, folder, lambda trial: records.record_trial(tracked, trial))
            else:
                find(params, folder)
        records.record_tuning(tracked, Path(), params)


def search(params: Params, folder: Path, tell: Callable[[Any], None]) -> None:
    """Search with Optuna for all that is `auto` and write what it found, and every trial, to `folder`."""
    from tenfold.training.search import search as search_with_optuna

    train = params.train
    best, trials = search_with_optuna(params, Summary.load(), tell)
    found = {"learning_rate": _given(train.learning_rate), "batch_size": _given(train.batch_size)}
    _write(folder, found | {name: {"value": value, "source": "search"} for name, value in best.items()})
    rows = [{"state": trial.state.name.lower(), "val/acc": trial.value, **trial.params} for trial in trials]
    _write_rows(folder / "trials.csv", rows)
    print(f"tune: {len(trials)} trials; best: " + ", ".join(f"{name} {value:.4g}" for name, value in best.items()))


def find(params: Params, folder: Path) -> None:
    """Run the finders that are asked for and write what they found to `folder`."""
    from pytorch_lightning import seed_everything

    from tenfold.report import figures
    from tenfold.training import finders
    from tenfold.training.factory import build_classifier
    from tenfold.training.tricks import build_data

    train = params.train
    seed_everything(params.seed, verbose=False)
    summary = Summary.load()
    first_rate = params.tune.learning_rate.fallback if train.learning_rate == "auto" else train.learning_rate
    first_size = params.tune.batch_size.min if train.batch_size == "auto" else train.batch_size
    data = build_data(params, first_size)
    module = build_classifier(params, summary, first_rate)

    batch_size: Found = _given(train.batch_size)
    if train.batch_size == "auto":
        size, rows = finders.find_batch_size(train, params.tune.batch_size, module, data)
        batch_size = {"value": size, "source": params.tune.batch_size.method}
        _write_rows(folder / "batch_size.csv", rows)
        print(f"tune: batch size {size} ({params.tune.batch_size.method})")
    data.batch_size = batch_size["value"]

    learning_rate: Found = _given(train.learning_rate)
    if train.learning_rate == "auto":
        test = finders.find_learning_rate(train, params.tune.learning_rate, module, data)
        learning_rate = _suggested(test, params.tune.learning_rate.fallback)
        points = zip(test.learning_rates, test.losses, strict=True)
        rows = [{"lr": f"{lr:.6g}", "loss": f"{loss:.6g}"} for lr, loss in points]
        _write_rows(folder / "learning_rate.csv", rows)
        figures.save(
            figures.learning_rate_search(test.learning_rates, test.losses, test.suggestion),
            folder / "learning_rate.png",
        )
        print(f"tune: learning rate {learning_rate['value']:.3g} ({learning_rate['source']})")

    _write(folder, {"learning_rate": learning_rate, "batch_size": batch_size})


def _suggested(test: Any, fallback: float) -> Found:
    if test.suggestion is None:
        print(
            f"warning: the learning-rate finder has no suggestion ({len(test.losses)} points); "
            f"tune.learning_rate.fallback is used: {fallback}"
        )
        return {"value": fallback, "source": "fallback"}
    return {"value": float(f"{test.suggestion:.3g}"), "source": "finder"}


def _given(value: float | str) -> Found:
    return {"value": value, "source": "params"}


def _write(folder: Path, found: Found) -> None:
    (folder / paths.TUNE_RESULT.name).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
