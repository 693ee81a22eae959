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
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tenfold import paths
from tenfold.errors import TenfoldError

if TYPE_CHECKING:
    from mlflow import MlflowClient

VARIABLE = "MLFLOW_TRACKING_URI"
DATABASE = "mlflow.db"
ARTIFACTS = "mlruns"
SQLITE = re.compile(r"sqlite(?:\+\w+)?:///(?P<file>[^?:][^?]*)(?P<options>(?:\?.*)?)")
BUSY_S = 30.0
"""How long a database may be locked by other writers (one sets it up, say) before it counts as unusable."""
ANSWER_S = 10.0
"""How long a server may take to answer."""


def tracking_uri() -> str:
    """The store's URI: `MLFLOW_TRACKING_URI`, else `mlflow.db` in the main checkout.

    A relative SQLite path in the variable hangs on the main checkout too: `mlflow run` and DVC's temporary
    experiments have other working directories.
    """
    uri = os.environ.get(VARIABLE) or f"sqlite:///{DATABASE}"
    match = SQLITE.fullmatch(uri)
    return f"sqlite:///{paths.home() / match['file']}{match['options']}" if match else uri


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
        reason = getattr(error, "strerror", None) or error
        raise TenfoldError(f"{file}: the MLflow store cannot be written ({reason}). {advice}.") from None


def _check_server(uri: str) -> None:
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=ANSWER_S):
            return
    except urllib.error.HTTPError as error:
        if error.code < 500:  # it is there; whether we may write, only writing tells
            return
        reason: object = error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
    raise TenfoldError(
        f"{VARIABLE}: no MLflow server answers at {uri} ({reason}). "
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
    from filelock import FileLock

    check()
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    if not os.environ.get("MLFLOW_LOGGING_LEVEL"):
        logging.getLogger("mlflow").setLevel(logging.WARNING)
    file = _database_file(uri)
    # MLflow's own set-up of a new database cannot stand a second process
    with FileLock(f"{file}.lock") if file else nullcontext():
        try:
            return mlflow.MlflowClient(uri)
        except Exception as error:  # SQLAlchemy and MLflow each raise their own
            reason = str(error).strip().splitlines()[0]
            raise TenfoldError(
                f"{uri}: the MLflow store cannot be opened ({reason}). {VARIABLE} names another."
            ) from error


def experiment(name: str) -> str:
    """The id of an experiment, made if it is new.

    Raises:
        TenfoldError: an experiment of that name was deleted, which keeps the name taken.
    """
    from mlflow.exceptions import MlflowException

    found = client().get_experiment_by_name(name)
    if found is None:
        try:
            return client().create_experiment(name, artifact_location=_artifact_location(name))
        except MlflowException:  # another process was quicker, or something is really wrong
            found = client().get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise TenfoldError(
            f"the MLflow experiment {name!r} was deleted and keeps its name. Restore it, with its runs: "
            f"{VARIABLE}='{tracking_uri()}' mlflow experiments restore --experiment-id {found.experiment_id}"
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
