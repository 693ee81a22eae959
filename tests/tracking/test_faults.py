"""Failures in the wrong moment: nothing is doubled, nothing is lost, and no other training's files get on a run."""

from __future__ import annotations

import json
import os
import platform
import signal
from pathlib import Path
from typing import Any

import mlflow
import pytest

from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.tracking import journal, lock, provenance, records, runs, store, sync
from tenfold.tracking.runs import Run

from .conftest import METRICS, write_json


def new_run(experiment: str = "tenfold", **tags: str) -> str:
    return str(store.client().create_run(store.experiment(experiment), tags=tags).info.run_id)


def points(run_id: str, key: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in store.client().get_metric_history(run_id, key)]


def test_evaluation_cut_short_before_its_tag_is_not_doubled(project: Path, params: Params) -> None:
    run_id = new_run()
    records.record_training(Run(run_id), Path(), params)
    records.record_evaluation(run_id, Path())
    store.client().delete_tag(run_id, runs.EVALUATION)
    records.record_evaluation(run_id, Path())
    assert points(run_id, "test/acc") == [(20, METRICS["test"]["acc"])]
    assert points(run_id, "val/acc")[-1] == (20, METRICS["val"]["acc"])
    assert len(points(run_id, "val/acc")) == 3


def test_evaluation_whose_files_cannot_be_stored_sends_no_point(
    project: Path, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = new_run()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "log_artifacts", full)
        with pytest.raises(store.StoreError, match="No space left"):
            records.record_evaluation(run_id, Path())
    assert points(run_id, "test/acc") == []
    records.record_evaluation(run_id, Path())
    assert len(points(run_id, "test/acc")) == 1


def test_two_equal_trainings_at_once_both_get_evaluation_and_model(project: Path, params: Params) -> None:
    both = [new_run(), new_run()]
    for run_id in both:
        records.record_training(Run(run_id), Path(), params)
    records.record_evaluation(sync.run_of(Path()), Path())
    version = records.record_model(sync.run_of(Path()), Path(), params)
    for run_id in both:
        data = store.client().get_run(run_id).data
        assert data.metrics["test/acc"] == METRICS["test"]["acc"]
        assert data.tags[runs.VERSION] == f"tenfold-mnist/{version.version}"
    assert len(store.client().search_model_versions("name = 'tenfold-mnist'")) == 1


def test_tunings_that_found_the_same_are_told_apart(project: Path, params: Params) -> None:
    first = new_run("tenfold-tune")
    records.record_tuning(Run(first), Path(), params)
    training = new_run()
    records.record_training(Run(training), Path(), params)
    curve = Path("reports/tune/learning_rate.csv")
    curve.write_text("lr,loss\n0.1,2\n")  # another seed's, with the same suggestion
    second = new_run("tenfold-tune")
    records.record_tuning(Run(second), Path(), params)
    curve.unlink()
    sync.sync(Path())
    assert store.client().get_run(training).data.tags[runs.TUNE_RUN] == first


def write_lock(**deps: str) -> None:
    """A dvc.lock that says of the train stage what it depends on."""
    listed = [{"path": path, "md5": md5} for path, md5 in deps.items()]
    write_json(Path("dvc.lock"), {"schema": "2.0", "stages": {"train": {"deps": listed, "outs": []}}})


@pytest.mark.parametrize("same", [True, False])
def test_the_same_weights_trained_again_are_linked_at_once(project: Path, params: Params, *, same: bool) -> None:
    """DVC skips evaluate and export then, since nothing that they read has changed."""
    first = new_run()
    records.record_training(Run(first), Path(), params)
    records.record_evaluation(first, Path())
    version = records.record_model(first, Path(), params)
    model = {"path": "models/best.ckpt", "md5": lock.md5(Path("models/best.ckpt")) if same else "another"}
    outs = {"evaluate": "reports/metrics.json", "export": "models/model.onnx"}
    stages = {
        stage: {"deps": [model], "outs": [{"path": out, "md5": lock.md5(Path(out))}]} for stage, out in outs.items()
    }
    write_json(Path("dvc.lock"), {"schema": "2.0", "stages": stages})
    with runs.open_run("tenfold", "again", folder=Path("resume")) as again:
        records.record_training(again, Path(), params)
    data = store.client().get_run(again.id).data
    expected = (METRICS["test"]["acc"], f"tenfold-mnist/{version.version}") if same else (None, None)
    assert (data.metrics.get("test/acc"), data.tags.get(runs.VERSION)) == expected
    assert len(store.client().search_model_versions("name = 'tenfold-mnist'")) == 1


def test_a_split_of_another_seed_is_refused(project: Path) -> None:
    Path(".dvc").mkdir()
    write_lock(**{"data/split": lock.md5(Path("data/split"))})
    assert sync.sync(Path())
    other = json.loads(Path("data/split/summary.json").read_text()) | {"dataset": "other"}
    write_json(Path("data/split/summary.json"), other)
    with pytest.raises(TenfoldError, match="data/split: is not the one that stage train knows"):
        sync.sync(Path())


def test_a_folder_is_hashed_as_dvc_does_it(tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "folder/deep").mkdir(parents=True)
    for name in ("b.txt", "a ä.txt", "deep/c", "B"):
        (tmp_path / "folder" / name).write_text(name)
    for command in ("git init -q", f"{sys.executable} -m dvc init -q", f"{sys.executable} -m dvc add -q folder"):
        subprocess.run(command.split(), cwd=tmp_path, check=True)
    assert f"md5: {lock.md5(tmp_path / 'folder')}\n" in (tmp_path / "folder.dvc").read_text()


def test_the_outer_run_is_not_killed_while_it_is_filled(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = f"{platform.node()} 999999999 1.00"
    outer = new_run(**{provenance.PROCESS: gone})
    left = new_run(**{provenance.PROCESS: gone})
    monkeypatch.setenv("MLFLOW_RUN_ID", outer)
    sync.sync(Path(), outer)
    ended = store.client().get_run(outer)
    assert (ended.info.status, journal.ERROR in ended.data.tags) == ("FINISHED", False)
    assert store.client().get_run(left).info.status == "KILLED"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_right_after_the_run_was_made_kills_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    feed = journal.Journal.feed

    def feed_and_signal(book: journal.Journal, run_id: str) -> None:
        feed(book, run_id)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(journal.Journal, "feed", feed_and_signal)

    def begin() -> None:
        with runs.open_run("tenfold", "x"):
            raise AssertionError("the block is not reached")

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        begin()
    (run,) = store.client().search_runs([store.experiment("tenfold")])
    assert run.info.status == "KILLED"
    assert run.data.tags[journal.ERROR].startswith(("KeyboardInterrupt", "Terminated"))


def test_a_lost_file_of_the_tuning_comes_back(project: Path, params: Params) -> None:
    (Path("reports/tune") / "learning_rate.png").write_bytes(b"picture")
    sync.sync(Path())
    (run,) = store.client().search_runs([store.experiment("tenfold-tune")])
    Path(run.info.artifact_uri, "tune/learning_rate.png").unlink()
    store.set_tags(run.info.run_id, {runs.RECORD: runs.PARTLY})
    sync.sync(Path())
    assert Path(run.info.artifact_uri, "tune/learning_rate.png").is_file()
    assert store.client().get_run(run.info.run_id).data.tags[runs.RECORD] == runs.WHOLE


def test_an_export_cut_short_leaves_no_second_model(
    project: Path, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = new_run()
    records.record_training(Run(run_id), Path(), params)
    records.record_evaluation(run_id, Path())

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(records, "_log_files", killed)
        with pytest.raises(KeyboardInterrupt):
            records.record_model(run_id, Path(), params)
    records.record_model(run_id, Path(), params)
    models = store.client().search_logged_models([store.experiment("tenfold")])
    assert [model.status for model in models] == ["READY"]


def test_a_damaged_line_of_a_journal_costs_no_other(project: Path) -> None:
    file = Path("resume/journal.jsonl")

    def interrupted() -> None:
        with runs.open_run("tenfold", "x", folder=file.parent) as run:
            assert run.journal is not None
            for step in range(6):
                run.journal.add_metrics({"loss": step}, step)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    lines = file.read_bytes().splitlines(keepends=True)
    damaged = next(number for number, line in enumerate(lines) if b'"step": 2' in line)
    lines[damaged] = b"\x00" * 20 + b"\n"
    file.write_bytes(b"".join(line for line in lines if b'"sent"' not in line and b'"run"' not in line))
    with pytest.warns(UserWarning, match="a damaged line ends at byte"):
        book = journal.Journal(file)
    book.feed(new_run())
    with pytest.warns(UserWarning, match="a damaged line"):
        book.send_all()
    assert [step for step, _ in points(book.run_id, "loss")] == [0, 1, 3, 4, 5]
