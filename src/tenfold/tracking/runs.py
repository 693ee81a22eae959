"""MLflow runs: opening, ending and finding them. A model's run is found by the SHA-256 of its checkpoint.

Runs are always named by id, never "active": so nothing here collides with an outer `mlflow run`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tenfold import paths
from tenfold.errors import TenfoldError
from tenfold.tracking import provenance, store

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.entities import Run as MlflowRun

TRAINING = "tenfold"
TUNING = "tenfold-tune"

MODEL = "tenfold.model_sha256"
"""Tag: the hash of `models/best.ckpt`. It makes a run that model's; set when training's part is complete."""
TUNE = "tenfold.tune_sha256"
"""Tag of a run of the tune stage: the hash of `reports/tune/tune.json`."""
TUNE_RUN = "tenfold.tune_run"
"""Tag: the id of the run that found the learning rate and the batch size."""
EVALUATION = "tenfold.evaluation_sha256"
"""Tag: the hash of the evaluation's files that this run holds."""
VERSION = "tenfold.model_version"
"""Tag: the registered version of the model, `<name>/<version>`."""
REPLAYED = "tenfold.replayed"
"""Tag: this run was rebuilt from the files, wholly or in part, and what of it cannot be."""
ERROR = "tenfold.error"
"""Tag: why the run failed."""

SAMPLING_S = 1.0
"""Interval of the system metrics: a short training gets some points, too."""
METRICS_PER_BATCH, LONGEST_TAG = 1000, 5000
"""MLflow's limits (of a tag, in characters: that of its oldest databases)."""


@dataclass(frozen=True)
class Run:
    """A run that is being filled. `id` is empty on all but the first of several training processes."""

    id: str


@contextmanager
def open_run(experiment: str, name: str, *, live: bool = True, folder: Path | None = None) -> Iterator[Run]:
    """Open a run, and end it with the block: FINISHED, FAILED (with the error as a tag) or KILLED.

    Where `MLFLOW_RUN_ID` is set, that is the training run: `mlflow run` made it and ends it if all goes well.

    Args:
        experiment: made if it is new.
        name: says what is being done; a run that exists already keeps its name.
        live: something is being computed, so this machine is recorded, and its load while the block runs.
        folder: of an interrupted training, whose run is opened again; the run's id is kept in it.

    Raises:
        TenfoldError: the store cannot be used, or `MLFLOW_RUN_ID` names no run, or the run of another model.
    """
    if _rank() > 0:
        yield Run("")
        return
    outer = outer_run() if experiment == TRAINING else None
    if outer is not None and MODEL in outer.data.tags:
        raise TenfoldError(
            f"MLFLOW_RUN_ID: {outer.info.run_id} is the run of a model trained before, and each training "
            "has a run of its own. Unset the variable."
        )
    tags = provenance.source_tags(Path()) | (provenance.machine_tags() if live else {})
    note = folder / "run.json" if folder else None
    if outer is None and (again := _reopened(note)):
        run_id = again
    elif outer is None:
        created = store.client().create_run(store.experiment(experiment), run_name=name, tags=tags)
        run_id = str(created.info.run_id)
        if note:
            with paths.writing(note) as file:
                file.write_text(json.dumps({"run_id": run_id}), encoding="utf-8")
    else:
        run_id = str(outer.info.run_id)
        set_tags(run_id, {name: value for name, value in tags.items() if name not in outer.data.tags})
    try:
        with _sigterm_raises(), _system_metrics(run_id) if live else nullcontext():
            yield Run(run_id)
    except BaseException as error:
        _end(run_id, error)
        raise
    if outer is None:
        _end(run_id)


def _reopened(note: Path | None) -> str | None:
    """The run that a note in a resume folder names, RUNNING again; None when there is no such run."""
    from mlflow.exceptions import MlflowException

    try:
        run_id = str(json.loads(note.read_text(encoding="utf-8"))["run_id"]) if note else ""
        if not run_id or store.client().get_run(run_id).info.lifecycle_stage == "deleted":
            return None
    except (OSError, ValueError, KeyError, MlflowException):
        return None
    store.client().update_run(run_id, status="RUNNING")
    return run_id


def find_run(model_sha256: str) -> str | None:
    """The id of the run of a model: `MLFLOW_RUN_ID`'s if that is one, else the newest in any experiment."""
    outer = outer_run()
    if outer is not None and outer.data.tags.get(MODEL) == model_sha256:
        return str(outer.info.run_id)
    experiments = [found.experiment_id for found in store.client().search_experiments()]
    return _newest(experiments, MODEL, model_sha256)


def find_tune_run(tune_sha256: str) -> str | None:
    """The id of the newest run of the tune stage that wrote that `tune.json`."""
    found = store.client().get_experiment_by_name(TUNING)
    return _newest([found.experiment_id], TUNE, tune_sha256) if found else None


def _newest(experiments: list[str], tag: str, value: str) -> str | None:
    found = store.client().search_runs(
        experiments, f"tags.`{tag}` = '{value}'", max_results=1, order_by=["attributes.start_time DESC"]
    )
    return str(found[0].info.run_id) if found else None


def outer_run() -> MlflowRun | None:
    """The run that `mlflow run` made for this process, if there is one.

    Raises:
        TenfoldError: `MLFLOW_RUN_ID` names a run that the store does not have.
    """
    from mlflow.exceptions import MlflowException

    run_id = os.environ.get("MLFLOW_RUN_ID")
    if not run_id:
        return None
    try:
        run = store.client().get_run(run_id)
    except MlflowException as error:
        raise TenfoldError(f"MLFLOW_RUN_ID: {run_id}: {error.message} Unset the variable.") from None
    if run.info.lifecycle_stage == "deleted":
        raise TenfoldError(f"MLFLOW_RUN_ID: run {run_id} was deleted. Unset the variable.")
    return run


def set_tags(run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags; long values are cut to what MLflow takes."""
    from mlflow.entities import RunTag

    store.client().log_batch(run_id, tags=[RunTag(key, value[:LONGEST_TAG]) for key, value in tags.items()])


def log_points(run_id: str, points: Sequence[Metric]) -> None:
    """Send points of curves; one that the run has already (key, value, time and step) is not doubled."""
    for start in range(0, len(points), METRICS_PER_BATCH):
        store.client().log_batch(run_id, metrics=points[start : start + METRICS_PER_BATCH])


def now_ms() -> int:
    """MLflow's clock."""
    return time.time_ns() // 1_000_000


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal.

    Raises:
        TenfoldError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise TenfoldError(
            f"{path}: cannot be read ({error.strerror}). Make it: dvc repro, or fetch it: dvc pull"
        ) from None


def _end(run_id: str, error: BaseException | None = None) -> None:
    """End a run. A store that fails now must neither hide the error of the block nor undo its work."""
    error = _reason(error)
    killed = isinstance(error, KeyboardInterrupt | Terminated)
    status = "KILLED" if killed else "FAILED" if error else "FINISHED"
    try:
        if error is not None:
            set_tags(run_id, {ERROR: f"{type(error).__name__}: {error}".removesuffix(": ")})
        store.client().set_terminated(run_id, status)
    except Exception as failure:
        warnings.warn(f"MLflow run {run_id} could not be marked {status}: {failure}", stacklevel=2)


def _reason(error: BaseException | None) -> BaseException | None:
    """What ended a block: Lightning turns Ctrl+C into `sys.exit(1)`; and `sys.exit(0)` is no error."""
    if not isinstance(error, SystemExit) or isinstance(error, Terminated):
        return error
    cause = _reason(error.__context__) if error.__context__ else None
    if isinstance(cause, KeyboardInterrupt | Terminated):
        return cause
    return error if error.code else None


class Terminated(SystemExit):
    """SIGTERM as an exception, so that what is open gets closed; with the exit status that shells give it."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)

    def __str__(self) -> str:
        return "SIGTERM"


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` in the block, once. Lightning calls this handler after its own."""

    def handle(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _system_metrics(run_id: str) -> Iterator[Any]:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor: Any = SystemMetricsMonitor(run_id, sampling_interval=SAMPLING_S, resume_logging=True)
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()


def _rank() -> int:
    """Which of several training processes this is, from the variables of torchrun, Lightning and SLURM."""
    names = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), 0)
