"""The servers that people start: MLflow's pages, and the registered model over HTTP."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

from tenfold.errors import TenfoldError
from tenfold.tracking import store

UI = {"MLFLOW_WORKERS": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""One person looks at local files: one worker, and none for jobs, is up twice as fast."""


def open_ui(host: str, port: int) -> NoReturn:
    """Become MLflow's web server over the project's store.

    Raises:
        TenfoldError: the store is a server of its own, or the port is taken.
    """
    uri = store.tracking_uri()
    if uri.startswith("http"):
        raise TenfoldError(f"the store is a server and has its own pages: open {uri}")
    _check_port(host, port)
    store.check()
    print(f"MLflow on http://{host}:{port} (end with Ctrl+C)", flush=True)
    _become("ui", "--backend-store-uri", uri, "--host", host, "--port", str(port), **UI)


def serve_model(model_uri: str, host: str, port: int) -> NoReturn:
    """Become `mlflow models serve` for a model of the store, in the environment at hand.

    Raises:
        TenfoldError: the port is taken, or there is no such model.
    """
    _check_port(host, port)
    _check_alias(model_uri)
    print(f"{model_uri} on http://{host}:{port}/invocations (end with Ctrl+C)", flush=True)
    _become("models", "serve", "-m", model_uri, "--env-manager", "local", "--host", host, "--port", str(port))


def _check_alias(model_uri: str) -> None:
    from mlflow.exceptions import MlflowException

    name, _, alias = model_uri.removeprefix("models:/").partition("@")
    if not (model_uri.startswith("models:/") and alias):
        return
    try:
        store.client().get_model_version_by_alias(name, alias)
    except MlflowException as error:
        raise TenfoldError(
            f"{model_uri}: there is no such model in {store.tracking_uri()} ({error.message}). Make one: dvc repro"
        ) from None


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise TenfoldError(
                f"port {port} on {host} cannot be used ({error.strerror}). Choose another with --port, or make: PORT=…"
            ) from None


def _become(*arguments: str, **variables: str) -> NoReturn:
    """Replace this process by the MLflow of its own environment, whose `uvicorn` MLflow looks for on the PATH."""
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "MLFLOW_TRACKING_URI": store.tracking_uri(),
    }
    for name, value in variables.items():
        environment.setdefault(name, value)
    os.execve(sys.executable, [sys.executable, "-m", "mlflow", *arguments], environment)
