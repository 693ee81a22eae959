"""A real MLflow server that is stopped and started again while a run is being filled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenfold.params import Params
from tenfold.tracking import journal, records, runs, store, sync
from tenfold.tracking.logger import RunLogger
from tests.postgres import postgres
from tests.servers import free_port

POINTS = 1500
"""Of each part of the curve: more than one batch."""


class Server:
    """`mlflow server` over a database."""

    def __init__(self, backend: str, folder: Path) -> None:
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(self.port)]
        self.command += ["--backend-store-uri", backend, "--artifacts-destination", str(folder / "artifacts")]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        self.process = subprocess.Popen(
            self.command,
            env=kept | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])},
            start_new_session=True,
        )
        deadline = time.monotonic() + 120
        while True:
            assert self.process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not answer"
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)

    def stop(self) -> None:
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
            self.process = None


@pytest.fixture
def backend(project: Path) -> Iterator[str]:
    """The URI of a real PostgreSQL of Debian's package; of an SQLite file where there is none, but not in CI."""
    with postgres() as uri:
        yield uri or f"sqlite:///{project / 'mlflow.db'}"


@pytest.fixture
def server(backend: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server(backend, project)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(journal, "INTERVAL_S", 0.1)
    monkeypatch.setattr(journal, "LAST_WAIT_S", 30.0)
    server.start()
    yield server
    server.stop()


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:MLflow takes nothing")
def test_no_point_is_lost(server: Server, params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(run: runs.Run, start: int) -> None:
        for step in range(start, start + POINTS):
            RunLogger(run).log_metrics({"loss": step / 2}, step)

    def curve(run_id: str) -> list[tuple[int, float]]:
        return [(point.step, point.value) for point in store.client().get_metric_history(run_id, "loss")]

    with runs.open_run("tenfold", "x") as run:
        assert run.journal is not None
        records.record_inputs(run, Path(), params)
        train(run, 0)
        assert run.journal.flush()
        server.stop()
        train(run, POINTS)
        assert not run.journal.flush(0.3)
        server.start()
        train(run, 2 * POINTS)
    assert curve(run.id) == [(step, step / 2) for step in range(3 * POINTS)]
    assert store.client().get_run(run.id).info.status == "FINISHED"
    assert not list(Path(".tenfold").rglob("*.jsonl"))

    def end_without_a_server() -> runs.Run:
        with runs.open_run("tenfold", "y") as run:
            train(run, 0)
            server.stop()
            monkeypatch.setattr(journal, "LAST_WAIT_S", 0.3)
            train(run, POINTS)
            records.record_training(run, Path(), params)
        return run

    with pytest.warns(UserWarning, match="`tenfold sync` sends the rest"):
        run = end_without_a_server()
    server.start()
    assert sync.sync(Path()) == run.id
    assert curve(run.id) == [(step, step / 2) for step in range(2 * POINTS)]
    ended = store.client().get_run(run.id)
    assert (ended.info.status, ended.data.tags[runs.RECORD]) == ("FINISHED", runs.WHOLE)
    assert ended.data.params["data.dataset"] == "mnist"
    assert records.holds(run.id, "checkpoint", Path("models/best.ckpt"))
    assert store.client().get_model_version_by_alias("tenfold-mnist", "champion").run_id == run.id
