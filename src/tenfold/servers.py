"""The servers that people start: MLflow's pages, and the registered model over HTTP."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from tenfold.errors import TenfoldError
from tenfold.serving import packaging
from tenfold.tracking import store

UI = {"MLFLOW_WORKERS": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""One person looks at local files: one worker, and none for jobs, is up twice as fast."""
LAST_ANSWERS_S = 5
"""How long a server that is ended still answers what it was asked."""


def open_ui(host: str, port: int) -> NoReturn:
    """Become MLflow's web server over the project's store.

    Raises:
        TenfoldError: the store is a server of its own, or the port is taken.
    """
    uri = store.tracking_uri()
    if uri.startswith("http"):
        raise TenfoldError(f"the store is a server and has its own pages: open {store.shown(uri)}")
    _check_port(host, port)
    store.check()
    # without this view, MLflow opens one for language models, where no training is
    address = _address(host, port)
    print(f"MLflow on {address}/#/experiments?workflowType=machine_learning (end with Ctrl+C)", flush=True)
    _become("ui", "--backend-store-uri", uri, "--host", host, "--port", str(port), **UI)


def serve_model(model_uri: str, host: str, port: int) -> None:
    """Serve a model of the store, and a page to try it on, until somebody ends it.

    Requests are answered by the code that was registered with the model, as by `mlflow models serve`.

    Raises:
        TenfoldError: the port is taken, there is no such model, or it is not of this project.
    """
    _check_port(host, port)
    classifier, respond = load_model(model_uri)
    import uvicorn

    from tenfold.serving import app

    address = _address(host, port)
    print(f"{model_uri}: try it at {address}, send requests to {address}/invocations (end with Ctrl+C)", flush=True)
    application = app.make(classifier, respond, model_uri)
    uvicorn.Server(
        uvicorn.Config(application, host=host, port=port, log_level="warning", timeout_graceful_shutdown=LAST_ANSWERS_S)
    ).run()


def load_model(model_uri: str) -> packaging.Loaded:
    """A registered model: see `packaging.load`. Its files are fetched if they are elsewhere, and do not stay.

    Args:
        model_uri: any MLflow model URI of this project, or a folder.

    Raises:
        TenfoldError: there is no such model, or it is not of this project.
    """
    if (folder := Path(model_uri)).is_dir():
        return packaging.load(folder)
    if known := store.local_model(model_uri):
        return packaging.load(known)
    import mlflow.artifacts
    from mlflow.exceptions import MlflowException

    with tempfile.TemporaryDirectory() as scratch:
        try:
            store.client()
            fetched = mlflow.artifacts.download_artifacts(model_uri, dst_path=scratch)
        except (MlflowException, OSError, ValueError) as error:  # ValueError: an address that it does not understand
            reason = error.message if isinstance(error, MlflowException) else error
            where = store.shown(store.tracking_uri())
            raise TenfoldError(
                f"{model_uri}: there is no such model in {where} ({reason}). Make one: dvc repro"
            ) from None
        return packaging.load(Path(fetched))


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _check_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
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
