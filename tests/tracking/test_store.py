import sqlite3
import subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tenfold.errors import TenfoldError
from tenfold.tracking import store

Stores = tuple[Path, list[subprocess.CompletedProcess[str]]]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "DVC_ROOT"):
        monkeypatch.delenv(name, raising=False)


def test_default_store_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert store.tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"


def test_temporary_experiment_uses_the_store_of_the_main_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_ROOT", "/main")
    assert store.tracking_uri() == "sqlite:////main/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other/runs.db?timeout=9")
    assert store.tracking_uri() == "sqlite:////main/other/runs.db?timeout=9"


@pytest.mark.parametrize("uri", ["http://tracking:5000", "postgresql://u@h/db", "sqlite:////a/b.db"])
def test_complete_uris_are_taken_as_they_are(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert store.tracking_uri() == uri


@pytest.mark.parametrize("uri", ["./mlruns", "file:///tmp/mlruns", "/tmp/mlruns"])
def test_folder_store_is_refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(TenfoldError, match=r"MLFLOW_TRACKING_URI.*is a folder"):
        store.check()


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///:memory:"])
def test_store_in_memory_is_refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(TenfoldError, match="in memory"):
        store.check()


def test_passwords_are_not_shown() -> None:
    assert store.shown("postgresql://me:se:cret@h:5432/db") == "postgresql://me:…@h:5432/db"
    assert store.shown("http://me:secret@h:5000") == "http://me:…@h:5000"
    assert store.shown("sqlite:////a@b/c.db") == "sqlite:////a@b/c.db"


def test_check_makes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store.check()
    assert not list(tmp_path.iterdir())


def test_folder_of_the_database_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////no/such/folder/mlflow.db")
    with pytest.raises(TenfoldError, match=r"/no/such/folder/mlflow\.db.*No such file.*MLFLOW_TRACKING_URI"):
        store.check()


def test_file_is_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mlflow.db").write_text("x" * 2000)
    with pytest.raises(TenfoldError, match=r"mlflow\.db.*not a database"):
        store.check()


def test_database_stays_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(store, "BUSY_S", 0.1)
    other = sqlite3.connect("mlflow.db")
    other.execute("CREATE TABLE t (x)")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TenfoldError, match="locked"):
        store.check()
    other.rollback()
    store.check()
    other.close()


@pytest.mark.parametrize(("status", "usable"), [(200, True), (401, True), (503, False)])
def test_server(status: int, usable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}/")
        if usable:
            store.check()
        else:
            with pytest.raises(TenfoldError, match=r"no MLflow server answers.*503"):
                store.check()
        server.shutdown()


def test_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_port
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    with pytest.raises(TenfoldError, match=rf"MLFLOW_TRACKING_URI.*{port}.*refused"):
        store.check()


def test_two_processes_set_up_one_store(new_stores: Stores) -> None:
    folder, processes = new_stores
    assert [(process.returncode, process.stdout, process.stderr) for process in processes] == [(0, "1\n", "")] * 2
    assert (folder / "mlflow.db").is_file()


def test_artifacts_lie_beside_the_database(project: Path) -> None:
    made = store.client().get_experiment(store.experiment("another"))
    assert made.artifact_location == str(project / "mlruns" / "another")
    assert store.experiment("another") == made.experiment_id


def test_deleted_experiment_is_named_with_the_way_back(project: Path) -> None:
    number = store.experiment("another")
    store.client().delete_experiment(number)
    with pytest.raises(TenfoldError, match=f"another.*mlflow experiments restore --experiment-id {number}"):
        store.experiment("another")


def test_outdated_database_is_named(project: Path) -> None:
    with sqlite3.connect("mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    with pytest.raises(TenfoldError, match=r"mlflow\.db: the MLflow store cannot be opened.*out-of-date"):
        store.client()
