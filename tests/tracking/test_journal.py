"""Interrupted trainings and stores that go away: a real store, real processes, real signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.entities import Run as MlflowRun

from tenfold.params import Params
from tenfold.tracking import journal, provenance, records, runs, store, sync
from tenfold.tracking.logger import RunLogger

from .conftest import REPOSITORY

TRAINER = """
import time
from pathlib import Path
from tenfold.tracking import runs
from tenfold.tracking.logger import RunLogger
with runs.open_run("tenfold", "a training", folder=Path(".tenfold/resume/key")) as run:
    logger = RunLogger(run)
    for step in range(25):
        logger.log_metrics({"train/loss": step / 2, "epoch": step // 10}, step)
    print(run.id, run.journal.flush(), flush=True)
    time.sleep(60)
"""
FOLDER = Path(".tenfold/resume/key")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "INTERVAL_S", 0.05)
    monkeypatch.setattr(journal, "LAST_WAIT_S", 0.3)


@pytest.fixture(scope="module")
def killed(new_stores: tuple[Path, object], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder where a training of 25 steps ended by SIGKILL, and the id of its run."""
    root = tmp_path_factory.mktemp("killed")
    shutil.copy(new_stores[0] / "mlflow.db", root)
    shutil.copy(REPOSITORY / "params.yaml", root)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DVC_"))}
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True, cwd=root, env=environment
    )
    assert process.stdout is not None
    run_id, flushed = process.stdout.readline().split()
    assert flushed == "True"
    process.kill()
    assert process.wait(timeout=30) == -signal.SIGKILL
    process.stdout.close()
    return root, run_id


@pytest.fixture
def run_id(project: Path, killed: tuple[Path, str]) -> str:
    """The run of the killed training; store and journal are in the working directory."""
    root, run_id = killed
    shutil.copy(root / "mlflow.db", project)
    shutil.copytree(root / ".tenfold", project / ".tenfold")
    assert store.client().get_run(run_id).info.status == "RUNNING"
    return run_id


def go_on() -> str:
    """Train from step 20 to 40 in the resume folder; the id of the run."""
    with runs.open_run("tenfold", "a training", folder=FOLDER) as run:
        for step in range(20, 40):
            RunLogger(run).log_metrics({"train/loss": step / 2, "epoch": step // 10}, step)
    shutil.rmtree(FOLDER)
    return run.id


def all_runs() -> list[MlflowRun]:
    client = store.client()
    return list(client.search_runs([found.experiment_id for found in client.search_experiments()]))


def curve(run_id: str) -> list[tuple[int, float]]:
    history = store.client().get_metric_history(run_id, "train/loss")
    return sorted((point.step, point.value) for point in history)


def expected(last: int) -> list[tuple[int, float]]:
    return [(step, step / 2) for step in range(last)]


def test_killed_training_goes_on_in_the_same_run_with_one_unbroken_curve(run_id: str) -> None:
    assert go_on() == run_id
    (run,) = all_runs()
    assert run.info.status == "FINISHED"
    assert run.data.tags[runs.RESUMED] == "1"
    assert journal.ERROR not in run.data.tags
    assert curve(run_id) == expected(40)
    system = store.client().get_metric_history(run_id, "system/cpu_utilization_percentage")
    assert len({point.step for point in system}) == len(system)


def test_training_ended_by_ctrl_c_goes_on(project: Path) -> None:
    def interrupted() -> None:
        with runs.open_run("tenfold", "a training", folder=FOLDER) as run:
            for step in range(25):
                RunLogger(run).log_metrics({"train/loss": step / 2, "epoch": step // 10}, step)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (run,) = all_runs()
    assert (run.info.status, run.data.tags[journal.ERROR]) == ("KILLED", "KeyboardInterrupt")
    assert curve(run.info.run_id) == expected(25)
    assert go_on() == run.info.run_id
    (run,) = all_runs()
    assert run.info.status == "FINISHED"
    assert journal.ERROR not in run.data.tags
    assert curve(run.info.run_id) == expected(40)


def test_kill_at_the_very_end_finds_the_run_again(project: Path) -> None:
    with runs.open_run("tenfold", "a training", folder=FOLDER) as run:
        RunLogger(run).log_metrics({"train/loss": 0}, 0)
    assert go_on() == run.id
    assert len(all_runs()) == 1
    assert curve(run.id) == [(0, 0), *expected(40)[20:]]


def test_run_that_went_missing_is_made_again_from_the_journal(run_id: str) -> None:
    store.client().delete_run(run_id)
    again = go_on()
    assert again != run_id
    (run,) = all_runs()
    assert run.info.status == "FINISHED"
    assert run.data.tags["tenfold.host"]
    assert curve(again) == expected(40)


def test_line_that_was_cut_off_is_left_out(run_id: str) -> None:
    with (FOLDER / journal.NAME).open("a") as file:
        file.write('{"metrics": {"train/lo')
    assert go_on() == run_id
    assert curve(run_id) == expected(40)


def test_kill_before_the_id_was_noted(run_id: str) -> None:
    file = FOLDER / journal.NAME
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    assert "opened" in file.read_text()
    assert go_on() == run_id


@pytest.mark.parametrize("start", ["sync", "another training"])
def test_next_start_marks_what_a_sigkill_left(run_id: str, start: str) -> None:
    unsent = {"metrics": {"train/loss": 12.5}, "step": 25, "time": 1}
    with (FOLDER / journal.NAME).open("a") as file:
        file.write(json.dumps(unsent) + "\n")
    alive = store.client().create_run(store.experiment("tenfold"), tags={provenance.PROCESS: provenance.process()})
    if start == "sync":
        sync.sync(Path())
    else:
        with runs.open_run("tenfold-tune", "x"):
            pass
    run = store.client().get_run(run_id)
    assert run.info.status == "KILLED"
    assert "its process is gone" in run.data.tags[journal.ERROR]
    assert store.client().get_run(alive.info.run_id).info.status == "RUNNING"
    assert curve(run_id) == expected(26)
    assert go_on() == run_id


def test_store_that_comes_back_gets_everything_once(project: Path, params: Params) -> None:
    with runs.open_run("tenfold", "x") as run:
        logger = RunLogger(run)
        assert run.journal is not None
        logger.log_metrics({"train/loss": 0}, 0)
        assert run.journal.flush()
        store.client().delete_run(run.id)  # a deleted run takes no points
        logger.log_metrics({"train/loss": 0.5}, 1)
        with pytest.warns(UserWarning, match="MLflow takes nothing"):
            run.journal.flush()
        store.client().restore_run(run.id)
        logger.log_metrics({"train/loss": 1}, 2)
    assert curve(run.id) == expected(3)
    assert not list(Path(".tenfold").rglob("*.jsonl"))


@pytest.mark.filterwarnings("ignore:MLflow takes nothing")
@pytest.mark.parametrize("folder", [None, FOLDER])
def test_what_could_not_be_sent_is_sent_by_sync(project: Path, params: Params, folder: Path | None) -> None:
    def lose_the_store() -> runs.Run:
        with runs.open_run("tenfold", "x", folder=folder, tags={provenance.PRECISION: "32-true"}) as run:
            assert run.journal is not None
            assert run.journal.flush()
            store.client().delete_run(run.id)
            RunLogger(run).log_metrics({"train/loss": 0.5}, 1)
            with pytest.warns(UserWarning, match="`tenfold sync` adds the rest"):
                records.record_inputs(run, Path(), params)
            records.record_training(run, Path(), params)
        return run

    with pytest.warns(UserWarning, match="`tenfold sync` sends the rest"):
        run = lose_the_store()
    store.client().restore_run(run.id)
    shutil.rmtree(FOLDER, ignore_errors=True)
    (left,) = Path(".tenfold").rglob("*.jsonl")
    assert left.parent == Path(".tenfold/unsent")

    assert sync.sync(Path()) == run.id
    data = store.client().get_run(run.id)
    assert data.info.status == "FINISHED"
    assert data.data.tags[runs.RECORD] == runs.WHOLE
    assert data.data.tags[provenance.PRECISION] == "32-true"
    assert data.data.params["data.dataset"] == "mnist"
    assert (1, 0.5) in curve(run.id)
    assert records.holds(run.id, "checkpoint", Path("models/best.ckpt"))
    assert [found.info.run_id for found in all_runs() if runs.MODEL in found.data.tags] == [run.id]
    assert not left.exists()


@pytest.mark.filterwarnings("ignore:MLflow takes nothing")
@pytest.mark.filterwarnings("ignore:MLflow did not get everything")
def test_journal_of_another_store_stays(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with runs.open_run("tenfold", "x") as run:
        store.client().delete_run(run.id)
        RunLogger(run).log_metrics({"train/loss": 0.5}, 1)
    (left,) = Path(".tenfold").rglob("*.jsonl")
    text = left.read_text()
    uri = json.dumps(store.tracking_uri())
    assert uri in text
    left.write_text(text.replace(uri, '"sqlite:////elsewhere.db"'))
    runs.tidy()
    assert left.exists()
    assert not all_runs()
    left.write_text(text)
    runs.tidy()
    assert not left.exists()
    (made,) = all_runs()
    assert made.info.run_id != run.id
    assert made.info.status == "FINISHED"
    assert curve(made.info.run_id) == [(1, 0.5)]
