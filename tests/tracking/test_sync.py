import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.entities import Run
from mlflow.tracking._tracking_service import utils as tracking_utils
from ruamel.yaml import YAML

from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.tracking import records, registry, runs, store, sync

from .conftest import METRICS, write_json


def all_runs() -> list[Run]:
    client = store.client()
    return list(client.search_runs([found.experiment_id for found in client.search_experiments()]))


def contents(run_id: str) -> dict[str, Any]:
    """Everything on a run, and the registry, in a form that can be compared."""
    client = store.client()
    run = client.get_run(run_id)
    curves = {
        name: sorted((point.step, point.value) for point in client.get_metric_history(run_id, name))
        for name in run.data.metrics
    }
    assert run.inputs is not None
    outputs = records._outputs(run_id)
    inputs = [entry.dataset.digest for entry in run.inputs.dataset_inputs]
    versions = [(str(version.version), dict(version.tags)) for version in client.search_model_versions()]
    aliases = {model.name: model.aliases for model in client.search_registered_models()}
    return {"name": run.info.run_name, "params": run.data.params, "tags": run.data.tags, "curves": curves} | {
        "outputs": outputs,
        "inputs": inputs,
        "versions": versions,
        "aliases": aliases,
    }


def lock(**changes: Any) -> None:
    """A dvc.lock for the files as they are, but for `changes`: `{path: md5}`, or `{"params": {…}}` of train."""
    params = Params.load().flat()

    def entry(*names: str) -> list[dict[str, str]]:
        return [
            {"path": name, "md5": changes.get(name) or hashlib.md5(Path(name).read_bytes()).hexdigest()}
            for name in names
        ]

    train = {key: value for key, value in params.items() if key.startswith("train.")}
    split = {"path": "data/split", "md5": "s.dir"}
    stages: dict[str, dict[str, Any]] = {
        "split": {"outs": [split | {"md5": changes.get("split", "s.dir")}]},
        "train": {
            "deps": [split, *entry("reports/tune/tune.json")],
            "params": {"params.yaml": train | {"model": {"network": "compact"}} | changes.get("params", {})},
            "outs": entry("models/best.ckpt"),
        },
        "evaluate": {
            "deps": [split, {"path": "models/best.ckpt", **entry("models/best.ckpt")[0]}],
            "outs": entry("reports/metrics.json"),
        },
        "export": {"deps": entry("models/best.ckpt", "reports/metrics.json"), "outs": entry("models/model.onnx")},
    }
    if "evaluated" in changes:
        stages["evaluate"]["deps"] = [{"path": "models/best.ckpt", "md5": changes["evaluated"]}]
    with Path("dvc.lock").open("w") as file:
        YAML().dump({"schema": "2.0", "stages": stages}, file)


def test_empty_store_is_filled_from_the_files(
    project: Path, params: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    lock()
    run_id = sync.sync(Path())
    tune, run = all_runs()
    assert tune.data.params["tuned.learning_rate"] == "0.012"
    assert "durations" in tune.data.tags[runs.REPLAYED]
    assert run.data.tags[runs.TUNE_RUN] == tune.info.run_id
    assert run.info.run_id == run_id
    name = f"mnist compact {params.train.max_epochs} epochs lr 0.012 batch 64 seed {params.seed}"
    assert (run.info.run_name, run.info.status) == (name, "FINISHED")
    assert "durations" in run.data.tags[runs.REPLAYED]
    assert "tenfold.host" not in run.data.tags
    found = contents(run_id)
    assert found["params"]["train.max_epochs"] == str(params.train.max_epochs)
    assert found["curves"]["val/loss"] == [(9, 0.4), (19, 0.2), (20, 0.02)]
    assert len(found["inputs"]) == 3
    assert [number for number, _ in found["versions"]] == ["1"]
    assert found["aliases"] == {"tenfold-mnist": {"champion": 1}}
    assert "tenfold-mnist version 1 is now champion" in capsys.readouterr().out


def test_second_sync_changes_nothing(project: Path) -> None:
    run_id = sync.sync(Path())
    before = contents(run_id)
    assert sync.sync(Path()) == run_id
    assert contents(run_id) == before
    assert len(all_runs()) == 2  # of tune and train


def test_trained_run_is_found_and_keeps_its_place(project: Path, params: Params) -> None:
    with runs.open_run("tenfold", "trained", root=Path()) as run:
        records.record_training(run, Path(), params)
    assert sync.run_of(Path()) == run.id
    assert sync.sync(Path()) == run.id
    assert runs.REPLAYED not in store.client().get_run(run.id).data.tags
    assert "val/acc" in contents(run.id)["curves"]


def test_run_deleted_in_the_ui_is_replayed(project: Path) -> None:
    first = sync.sync(Path())
    store.client().delete_run(first)
    second = sync.sync(Path())
    assert second != first
    assert [number for number, _ in contents(second)["versions"]] == ["1"]


def test_outer_run_is_filled_though_the_model_has_a_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sync.sync(Path())
    outer = store.client().create_run(store.experiment("foo")).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", outer)
    assert sync.run_of(Path()) == outer
    assert sync.sync(Path()) == outer
    assert sync.sync(Path(), outer) == outer
    filled, of_first = contents(outer), contents(first)
    for part in ("params", "curves", "outputs", "inputs"):
        assert filled[part] == of_first[part]
    assert filled["tags"][runs.VERSION] == "tenfold-mnist/1"
    assert filled["name"] == of_first["name"]  # MLflow made one up
    assert filled["tags"]["tenfold.params_sha256"] == runs.file_sha256(Path("params.yaml"))
    assert store.client().get_run(outer).info.status == "RUNNING"
    assert len(all_runs()) == 3


def test_files_can_lie_elsewhere(project: Path, tmp_path: Path) -> None:
    lock()
    for path in sync.FILES:
        target = tmp_path / "copy" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy)(path, target)
    for name in ("data", "models", "reports", "params.yaml"):
        Path(name).rename(tmp_path / name)
    outer = store.client().create_run(store.experiment("foo")).info.run_id
    sync.sync(tmp_path / "copy", outer)
    assert contents(outer)["aliases"] == {"tenfold-mnist": {"champion": 1}}


def test_run_of_another_model_is_not_filled(project: Path) -> None:
    run_id = sync.sync(Path())
    Path("models/best.ckpt").write_bytes(b"others")
    with pytest.raises(TenfoldError, match=f"{run_id} is that of another model"):
        sync.sync(Path(), run_id)


def test_no_model(project: Path) -> None:
    Path("models/best.ckpt").unlink()
    with pytest.raises(TenfoldError, match=r"models/best\.ckpt: cannot be read.*dvc repro"):
        sync.sync(Path())
    assert not all_runs()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": {"train.max_epochs": 999}}, r"train\.max_epochs is \d+, but stage train was run with 999"),
        ({"params": {"model": {"width": 999}}}, r"model\.width is \d+, but stage train was run with 999"),
        ({"models/best.ckpt": "0"}, r"models/best\.ckpt: is not the one that stage train knows"),
        ({"reports/tune/tune.json": "0"}, r"tune\.json: is not the one"),
        ({"split": "t.dir"}, "data/split: is not the one that stage train knows"),
    ],
)
def test_settings_that_are_not_the_models_are_refused(project: Path, change: dict[str, Any], message: str) -> None:
    lock(**change)
    with pytest.raises(TenfoldError, match=f"{message}.*dvc repro"):
        sync.run_of(Path())
    assert not all_runs()


def test_evaluation_of_another_model_is_left_out(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock(evaluated="0")
    data = store.client().get_run(sync.sync(Path())).data
    assert "train/loss" in data.metrics
    assert "test/acc" not in data.metrics
    assert "nothing of the evaluate stage is recorded: models/best.ckpt" in capsys.readouterr().out
    assert not store.client().search_registered_models()


def test_what_is_not_there_yet_is_left_out(project: Path) -> None:
    Path("models/model.onnx").unlink()
    run_id = sync.sync(Path())
    assert "test/acc" in store.client().get_run(run_id).data.metrics
    assert not store.client().search_registered_models()


def test_sync_moves_no_alias_of_a_version_that_was_judged(project: Path) -> None:
    sync.sync(Path())
    client = store.client()
    best = client.create_model_version("tenfold-mnist", source="x", tags={registry.TEST_ACC: "0.9"})
    client.set_registered_model_alias("tenfold-mnist", "champion", best.version)
    sync.sync(Path())
    assert client.get_model_version_by_alias("tenfold-mnist", "champion").version == best.version


def artifacts(run_id: str) -> set[str]:
    return {entry.path for entry in store.client().list_artifacts(run_id)}


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_project_that_was_moved_or_copied_has_its_artifacts(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    run_id = sync.sync(Path())
    before, held = contents(run_id), artifacts(run_id)
    there = tmp_path / "näw place"
    if how == "moved":
        project.rename(there)
    else:
        shutil.copytree(project, there)
    monkeypatch.chdir(there)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")  # where MLflow put the old place, which it remembers for each run as well
    tracking_utils._artifact_repos_cache.clear()
    assert sync.sync(Path()) == run_id
    assert contents(run_id) == before
    assert artifacts(run_id) == held
    assert len(all_runs()) == 2
    for run in all_runs():
        assert str(run.info.artifact_uri).startswith(str(there))
    assert mlflow.pyfunc.load_model("models:/tenfold-mnist@champion").predict([[[7.0] * 4] * 4]) == [[7.0] * 16]
    with runs.open_run("tenfold", "another", root=Path()) as another:
        store.client().log_text(another.id, "x", "x.txt")
    assert project.exists() == (how == "copied")
    assert list((there / "mlruns/tenfold" / another.id).rglob("x.txt"))


def test_copy_of_the_database_alone_shows_the_artifacts(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = sync.sync(Path())
    held = artifacts(run_id)
    shutil.copy("mlflow.db", tmp_path / "copy.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'copy.db'}")
    assert artifacts(run_id) == held


def test_lost_artifacts_come_back_to_the_same_run(project: Path) -> None:
    run_id = sync.sync(Path())
    before, held = contents(run_id), artifacts(run_id)
    shutil.rmtree("mlruns")
    assert sync.sync(Path()) == run_id
    assert contents(run_id) == before
    assert artifacts(run_id) == held
    assert len(all_runs()) == 2
    assert mlflow.pyfunc.load_model("models:/tenfold-mnist@champion").predict([[[7.0] * 4] * 4]) == [[7.0] * 16]


def test_older_checkout_finds_its_run(project: Path) -> None:
    first = sync.sync(Path())
    shutil.copytree("models", "old/models")
    shutil.copytree("reports", "old/reports")
    Path("models/best.ckpt").write_bytes(b"other weights")
    write_json(Path("reports/metrics.json"), METRICS | {"test": {"loss": 0.1, "acc": 0.9}})
    second = sync.sync(Path())
    assert second != first
    before = [contents(run_id) for run_id in (first, second)]
    for folder in ("models", "reports"):
        shutil.rmtree(folder)
        shutil.move(f"old/{folder}", folder)
    assert sync.sync(Path()) == first
    assert [contents(run_id) for run_id in (first, second)] == before


def test_deleted_experiment_is_named_with_the_way_back(project: Path) -> None:
    run_id = sync.sync(Path())
    number = store.experiment("tenfold")
    store.client().delete_experiment(number)
    with pytest.raises(TenfoldError, match=f"mlflow experiments restore --experiment-id {number}"):
        sync.sync(Path())
    store.client().restore_experiment(number)
    assert sync.sync(Path()) == run_id


def test_missing_tune_run_is_replayed_and_linked(project: Path) -> None:
    run_id = sync.sync(Path())
    tune = store.client().get_run(run_id).data.tags[runs.TUNE_RUN]
    store.client().delete_run(tune)
    sync.sync(Path())
    again = store.client().get_run(run_id).data.tags[runs.TUNE_RUN]
    assert again != tune
    assert "durations" in store.client().get_run(again).data.tags[runs.REPLAYED]


def test_tuning_that_searched_nothing_has_no_run(project: Path) -> None:
    found = json.loads(Path("reports/tune/tune.json").read_text())
    write_json(Path("reports/tune/tune.json"), {key: value | {"source": "params"} for key, value in found.items()})
    sync.sync(Path())
    assert len(all_runs()) == 1


def test_values_that_are_no_numbers_and_long_settings_are_replayed(project: Path) -> None:
    history = Path("reports/train/history.csv")
    history.write_text(history.read_text().replace("0.5,", "nan,").replace("0.3,", "inf,"))
    write_json(Path("reports/metrics.json"), METRICS | {"test": {"loss": math.nan, "acc": math.nan}})
    run_id = sync.sync(Path())
    values = dict(contents(run_id)["curves"]["train/loss"])
    assert math.isnan(values[9])
    assert values[19] > 1e300
    assert contents(run_id)["aliases"] == {"tenfold-mnist": {"challenger": 1}}
    assert sync.sync(Path()) == run_id
