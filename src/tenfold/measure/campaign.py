"""`tenfold tricks`: every cell with every seed, each in a fresh process, in turns; stopped, it goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from ruamel.yaml import YAML

from tenfold import paths
from tenfold.errors import TenfoldError
from tenfold.measure import table
from tenfold.measure.cells import Cell, choose, load
from tenfold.params import Params
from tenfold.training import identity

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "tenfold-tricks"
RESULTS = Path(".tenfold/tricks.jsonl")
REPORT = Path("reports/tricks")

Result = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """A cell with a seed."""

    cell: Cell
    seed: int

    @property
    def params(self) -> Params:
        """All settings."""
        return self.cell.params.model_copy(update={"seed": self.seed})


def measure(params: Params, names: Sequence[str], seeds: int, again: bool = False) -> bool:
    """Measure what is not measured yet, write the tables, and record all in MLflow.

    Args:
        params: the settings that `tricks.yaml` changes.
        names: of cells or tables; none: all.
        seeds: trainings of each cell, with seeds from 0.
        again: whether to measure anew what is known.

    Returns:
        Whether every trial succeeded; one that fails is told of and left out.
    """
    cells = choose(load(params), list(names))
    trials = [Trial(cell, seed) for seed in range(seeds) for cell in cells]
    known = {} if again else _known()
    code: dict[str, str] = {}
    for stage in ("split", "tune", "train", "evaluate"):
        code |= identity.code(stage)
    keys = {trial: _key(trial, code) for trial in trials}
    missing = [trial for trial in trials if keys[trial] not in known]
    if subprocess.run([sys.executable, "-m", "dvc", "repro", "--quiet", "download"], check=False).returncode:
        raise TenfoldError("tricks: the data is not to be had; see above. Try: dvc repro download")
    print(f"tricks: {len(trials)} trainings, of which {len(trials) - len(missing)} are measured already", flush=True)
    failed = 0
    with _recorded(cells, seeds) as record, _progress(len(missing)) as tell:
        for trial in trials:
            result = known.get(keys[trial])
            if result is None:
                result = _run(trial)
                tell(trial, result)
                if "error" not in result:
                    _keep(keys[trial], trial, result)
                    known[keys[trial]] = result
            failed += "error" in result
            record(trial, result)
        found = {(trial.cell, trial.seed): known[keys[trial]] for trial in trials if keys[trial] in known}
        table.write(REPORT, cells, found)
        record.artifacts(REPORT)
    Console(width=None if sys.stdout.isatty() else 180).print(table.show(cells, found))
    print(f"tricks: tables and plots are in {REPORT}/")
    if failed:
        print(f"tricks: {failed} of {len(trials)} trainings failed", file=sys.stderr)
    return not failed


def _run(trial: Trial) -> Result:
    """One training in a fresh process and an empty folder; what it measured, or `error`."""
    root = Path.cwd()
    with TemporaryDirectory(prefix="tenfold-trick-") as folder:
        work = Path(folder)
        (work / paths.RAW).parent.mkdir(parents=True)
        (work / paths.RAW).symlink_to((root / paths.RAW).resolve())
        with (work / paths.PARAMS).open("w", encoding="utf-8") as file:
            YAML().dump(trial.params.model_dump(mode="json"), file)
        done = subprocess.run(
            [sys.executable, "-m", "tenfold.measure.trial"],
            cwd=work,
            env=os.environ | {"PYTHONPATH": str(root / "src"), "TQDM_DISABLE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            return {"error": (done.stdout.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
        result: Result = json.loads((work / "result.json").read_text(encoding="utf-8"))
        return result


def _key(trial: Trial, code: dict[str, str]) -> str:
    """The SHA-256 of what a trial's result depends on: settings, code, versions and machine."""
    parts = {
        "params": trial.params.model_dump(mode="json", exclude={"export"}),
        "code": code,
        "machine": [platform.node(), os.cpu_count(), os.environ.get("OMP_NUM_THREADS")],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _known() -> dict[str, Result]:
    """What has been measured, by key; a line that a kill left half-written is passed over."""
    file, found = paths.home() / RESULTS, {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            entry = json.loads(line)
            found[entry["key"]] = entry["result"]
        except (ValueError, KeyError, TypeError):
            print(f"tricks: {RESULTS}: a damaged line is passed over", file=sys.stderr)
    return found


def _keep(key: str, trial: Trial, result: Result) -> None:
    file = paths.home() / RESULTS
    file.parent.mkdir(exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        entry = {"key": key, "table": trial.cell.table, "name": trial.cell.name, "seed": trial.seed, "result": result}
        lines.write(f"\n{json.dumps(entry)}\n" if _is_torn(file) else f"{json.dumps(entry)}\n")


def _is_torn(file: Path) -> bool:
    content = file.read_bytes()
    return bool(content) and not content.endswith(b"\n")


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A bar on a terminal, with the time that is left; a line per training in each case."""
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("tricks", total=total)
        done = 0

        def tell(trial: Trial, result: Result) -> None:
            nonlocal done
            done += 1
            bar.advance(task)
            what = result.get("error") or (
                f"{result['fit_s']:.2f} s, val {result['val_acc']:.2%}, test {result['test_acc']:.2%}"
            )
            bar.console.print(
                f"tricks: {done}/{total}  {trial.cell.table}: {trial.cell.name}, seed {trial.seed}: {what}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

        yield tell


class _Recorder:
    """A parent run, with a child per trial."""

    def __init__(self, client: MlflowClient, experiment: str, parent: str) -> None:
        self.client, self.experiment, self.parent = client, experiment, parent

    def __call__(self, trial: Trial, result: Result) -> None:
        from mlflow.entities import Metric, RunTag
        from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

        from tenfold.tracking import provenance, records

        tags = {
            MLFLOW_PARENT_RUN_ID: self.parent,
            provenance.PROCESS: provenance.process(),
            "tenfold.trick": trial.cell.name,
            "tenfold.table": trial.cell.table,
        }
        run = self.client.create_run(
            self.experiment, tags=tags, run_name=f"{trial.cell.table}: {trial.cell.name}, seed {trial.seed}"
        )
        records.log_params(run.info.run_id, trial.params.flat())
        metrics = [Metric(key, value, 0, 0) for key, value in result.items() if key != "error"]
        told = [RunTag("tenfold.error", result["error"])] if "error" in result else []
        self.client.log_batch(run.info.run_id, metrics, tags=told)
        self.client.set_terminated(run.info.run_id, "FAILED" if "error" in result else "FINISHED")

    def artifacts(self, folder: Path) -> None:
        """Log the tables and plots with the parent."""
        self.client.log_artifacts(self.parent, str(folder))


@contextmanager
def _recorded(cells: Sequence[Cell], seeds: int) -> Iterator[_Recorder]:
    """A parent run in an experiment of its own."""
    from tenfold.tracking import provenance, store

    client, experiment = store.client(), store.experiment(EXPERIMENT)
    tags = {provenance.PROCESS: provenance.process()}  # a run that a SIGKILL leaves is ended by the next `runs.tidy`
    parent = client.create_run(experiment, tags=tags, run_name=f"{len(cells)} cells, {seeds} seeds").info.run_id
    status = "FAILED"
    try:
        yield _Recorder(client, experiment, parent)
        status = "FINISHED"
    except (KeyboardInterrupt, SystemExit):
        status = "KILLED"
        raise
    finally:
        client.set_terminated(parent, status)
