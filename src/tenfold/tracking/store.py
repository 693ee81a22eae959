"""Where MLflow keeps its records: the store's address, whether it can be written, and a client of it."""

from __future__ import annotations

import functools
import logging
import os
import re
import sqlite3
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tenfold import paths
from tenfold.errors import TenfoldError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

VARIABLE = "MLFLOW_TRACKING_URI"
DATABASE = "mlflow.db"
ARTIFACTS = "mlruns"
SQLITE = re.compile(r"sqlite(?:\+\w+)?:///(?P<file>[^?:][^?]*)(?P<options>(?:\?.*)?)")
VERSION = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<number>\d+))")
BUSY_S = 30.0
"""How long a database may be locked by other writers (one sets it up, say) before it counts as unusable."""
ANSWER_S = 10.0
"""How long a server may take to answer."""
DEFAULTS = {"MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3"}
"""MLflow's own settings, where the user has set none: its 7 retries keep a process hanging for minutes."""
METRICS_PER_BATCH, LONGEST_TAG = 1000, 5000
"""MLflow's limits (of a tag, in characters: that of its oldest databases)."""
ADDRESSES = {
    "experiments": "artifact_location",
    "runs": "artifact_uri",
    "logged_models": "artifact_location",
    "model_versions": "storage_location",
}
"""Table and column of MLflow's database where absolute addresses of artifacts stand."""


NOTES = {
    name: {"mlflow.note.content": text}
    for name, text in {
        "tenfold": "One run is one training and all that belongs to it. **Columns** adds `test/acc` to the table.",
        "tenfold-tune": "What the stage `tune` searched for; the trainings are in the experiment `tenfold`.",
    }.items()
}
"""What is said of experiments that are made here."""


class StoreError(TenfoldError):
    """The store is away, or refuses something."""


def tracking_uri() -> str:
    """The store's URI: `MLFLOW_TRACKING_URI`, else `mlflow.db` in the main checkout.

    A relative SQLite path in the variable hangs on the main checkout too: `mlflow run` and DVC's temporary
    experiments have other working directories. And `mlflow run` writes the path of its database with `%20` for a space,
    which MLflow itself does not read as one.
    """
    uri = os.environ.get(VARIABLE) or f"sqlite:///{DATABASE}"
    match = SQLITE.fullmatch(uri)
    if not match:
        return uri
    file = paths.home() / match["file"]
    plain = Path(unquote(str(file)))
    return f"sqlite:///{plain if plain.exists() and not file.exists() else file}{match['options']}"


def _database_file(uri: str) -> Path | None:
    """The file of a SQLite store's URI, taken literally (no %20) as MLflow does; None for other stores."""
    match = SQLITE.fullmatch(uri)
    return Path(match["file"]) if match else None


def check() -> None:
    """Make sure, before any work, that the store can be written; MLflow is not imported for it.

    Raises:
        TenfoldError: it cannot; the message names the file or the variable and what to do.
    """
    uri = tracking_uri()
    scheme = uri.partition(":")[0]
    if file := _database_file(uri):
        _check_database(file)
    elif scheme in {"http", "https"}:
        _check_server(uri)
    elif scheme == "sqlite":
        raise TenfoldError(
            f"{VARIABLE}: {uri} is in memory and gone when a stage ends. Name a file: sqlite:///{DATABASE}"
        )
    elif scheme == "file" or ":" not in uri:
        raise TenfoldError(
            f"{VARIABLE}: {uri} is a folder, which MLflow 3 no longer writes to. "
            f"Name a database (sqlite:///{DATABASE}) or a server (http://…), or unset the variable."
        )


def _check_database(file: Path) -> None:
    advice = f"Make it writable, or point {VARIABLE} elsewhere (for instance sqlite:////tmp/{DATABASE})"
    try:
        with tempfile.TemporaryFile(dir=file.parent):  # SQLite keeps its journal beside the database
            pass
        if file.exists():
            connection = sqlite3.connect(f"{file.as_uri()}?mode=rw", timeout=BUSY_S, uri=True)
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.rollback()
            finally:
                connection.close()
    except (OSError, sqlite3.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise TenfoldError(f"{file}: the MLflow store cannot be written ({why}). {advice}.") from None


def _check_server(uri: str) -> None:
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=ANSWER_S):
            return
    except urllib.error.HTTPError as error:
        if error.code < 500:  # it is there; whether we may write, only writing tells
            return
        why: object = error
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
    raise TenfoldError(
        f"{VARIABLE}: no MLflow server answers at {shown(uri)} ({why}). "
        f"Start it, correct the variable, or unset it to use {DATABASE} in the project."
    )


def client() -> MlflowClient:
    """A client of the store, which is set up on first use. MLflow's own functions then use the same store.

    Raises:
        TenfoldError: the store cannot be opened.
    """
    import mlflow

    uri = tracking_uri()
    mlflow.set_tracking_uri(uri)
    return _open(uri)


@functools.lru_cache
def _open(uri: str) -> MlflowClient:
    import mlflow

    check()
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if not os.environ.get("MLFLOW_LOGGING_LEVEL"):
        logging.getLogger("mlflow").setLevel(logging.WARNING)
    with lock():  # MLflow's own set-up of a new database cannot stand a second process
        try:
            opened = mlflow.MlflowClient(uri)
            if file := _database_file(uri):
                _follow_a_move(file)
        except Exception as error:  # SQLAlchemy and MLflow each raise their own
            raise StoreError(
                f"{shown(uri)}: the MLflow store cannot be opened ({reason(error)}). {VARIABLE} names another."
            ) from error
    return opened


def local_model(model_uri: str) -> Path | None:
    """The folder of a version, `models:/NAME@ALIAS` or `models:/NAME/NUMBER`, from a SQLite store that lies here.

    None where it is not as simple as that; then MLflow knows, whose imports take three seconds.
    """
    file, match = _database_file(tracking_uri()), VERSION.fullmatch(model_uri)
    if not (file and file.is_file() and match):
        return None
    query = "SELECT storage_location FROM model_versions AS v WHERE v.name = :name AND v.version = " + (
        "(SELECT version FROM registered_model_aliases AS a WHERE a.name = v.name AND a.alias = :alias)"
        if match["alias"]
        else ":number"
    )
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)) as connection:
            found = connection.execute(query, match.groupdict()).fetchall()
    except sqlite3.Error:  # another version of MLflow's tables
        return None
    folder = Path(found[0][0] or "") if len(found) == 1 else None
    return folder if folder and folder.is_absolute() and folder.is_dir() else None


def lock() -> AbstractContextManager[object]:
    """Of the processes that use one SQLite store, one at a time; a server takes care of itself."""
    from filelock import FileLock

    file = _database_file(tracking_uri())
    return FileLock(f"{file}.lock", is_singleton=True) if file else nullcontext()


def _follow_a_move(database: Path) -> None:
    """Artifacts lie beside the database, and MLflow knows them by absolute paths: mend these after a move or a copy.

    A copy of the database alone goes on showing the artifacts where they are.
    """
    here = database.parent / ARTIFACTS
    with closing(sqlite3.connect(database, timeout=BUSY_S)) as connection, connection:
        for name, location in connection.execute("SELECT name, artifact_location FROM experiments").fetchall():
            old = Path(location or "").parent
            if (
                str(old / name) == location
                and old.name == ARTIFACTS
                and old != here
                and (here.is_dir() or not old.is_dir())
            ):
                for table, column in ADDRESSES.items():
                    connection.execute(
                        f"UPDATE {table} SET {column} = replace({column}, ?, ?) WHERE instr({column}, ?)",
                        (f"{old}/", f"{here}/", f"{old}/"),
                    )


@contextmanager
def answering() -> Iterator[None]:
    """Turn what MLflow and the network raise in the block into one error with a message. Decorates functions as well.

    Raises:
        StoreError: the store did not do what was asked for.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except FileNotFoundError:  # a file of the checkout
        raise
    except (MlflowException, OSError) as error:
        raise StoreError(
            f"{shown(tracking_uri())}: the MLflow store does not answer, or refuses ({reason(error)}). "
            "When it is there again: dvc repro"
        ) from error


def reason(error: BaseException) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def shown(uri: str) -> str:
    """A URI without the password in it."""
    return re.sub(r"(//[^/@:]*):[^/@]*@", r"\1:…@", uri)


def set_tags(run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags; long values are cut to what MLflow takes."""
    from mlflow.entities import RunTag

    if tags:
        client().log_batch(run_id, tags=[RunTag(key, value[:LONGEST_TAG]) for key, value in tags.items()])


def log_points(run_id: str, points: Sequence[Metric]) -> None:
    """Send points of curves; one that the run has already (key, value, time and step) is not doubled."""
    for start in range(0, len(points), METRICS_PER_BATCH):
        client().log_batch(run_id, metrics=points[start : start + METRICS_PER_BATCH])


def experiment(name: str) -> str:
    """The id of an experiment, made if it is new.

    Raises:
        TenfoldError: an experiment of that name was deleted, which keeps the name taken.
    """
    from mlflow.exceptions import MlflowException

    found = client().get_experiment_by_name(name)
    if found is None:
        try:
            return client().create_experiment(name, _artifact_location(name), tags=NOTES.get(name))
        except MlflowException:  # another process was quicker, or something is really wrong
            found = client().get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise TenfoldError(
            f"the MLflow experiment {name!r} was deleted and keeps its name. Restore it, with its runs: "
            f"{VARIABLE}='{shown(tracking_uri())}' mlflow experiments restore --experiment-id {found.experiment_id}"
        )
    return str(found.experiment_id)


def _artifact_location(name: str) -> str | None:
    """A folder beside the database, or in the main checkout; a server decides by itself.

    Without this MLflow takes the working directory, which for a temporary experiment is gone when it ends.
    """
    uri = tracking_uri()
    if file := _database_file(uri):
        return str(file.parent / ARTIFACTS / name)
    return str(paths.home() / ARTIFACTS / name) if uri.startswith(("postgresql", "mysql", "mssql")) else None
