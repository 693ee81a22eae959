import json
import math
from importlib.metadata import version
from pathlib import Path

import mlflow
import pytest
from mlflow.entities import DatasetInput
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import create_trial

from tenfold import processes
from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.serving import packaging
from tenfold.tracking import provenance, records, registry, runs, store
from tenfold.tracking.runs import Run

from .conftest import METRICS, write_json


@pytest.fixture
def run_id(project: Path) -> str:
    return str(store.client().create_run(store.experiment("tenfold")).info.run_id)


def points(run_id: str, key: str) -> list[tuple[int, float]]:
    history = store.client().get_metric_history(run_id, key)
    return sorted((point.step, point.value) for point in history)


def artifacts(run_id: str, folder: str | None = None) -> list[str]:
    return [entry.path for entry in store.client().list_artifacts(run_id, folder)]


def datasets(run_id: str) -> list[DatasetInput]:
    inputs = store.client().get_run(run_id).inputs
    return list(inputs.dataset_inputs) if inputs else []


def test_settings(run_id: str, params: Params) -> None:
    store.client().log_param(run_id, "seed", str(params.seed))  # as `mlflow run -P seed=…` does
    records.record_inputs(Run(run_id), Path(), params)
    records.record_inputs(Run(run_id), Path(), params)
    logged = store.client().get_run(run_id).data.params
    assert set(logged) == set(params.flat())
    assert json.loads(logged["train.optimizer.betas"]) == params.train.optimizer.betas
    assert logged["train.early_stopping.patience"] == json.dumps(params.train.early_stopping.patience)
    assert logged["data.dataset"] == "mnist"


def test_long_setting_is_kept_whole_in_a_file(run_id: str) -> None:
    records.log_params(run_id, {"long": "ä" * 7000})
    assert store.client().get_run(run_id).data.params["long"] == "ä" * 5999 + "…"
    assert artifacts(run_id, "settings") == ["settings/long.txt"]


def test_dataset(run_id: str, params: Params) -> None:
    records.record_inputs(Run(run_id), Path(), params)
    records.record_inputs(Run(run_id), Path(), params)
    inputs = datasets(run_id)
    assert [entry.tags[0].value for entry in inputs] == ["train", "val", "test"]
    summary = json.loads(Path("data/split/summary.json").read_text())
    for part, entry in zip(("train", "val", "test"), inputs, strict=True):
        assert summary["sha256"][part].startswith(entry.dataset.digest)
        assert json.loads(str(entry.dataset.profile))["images"] == summary["counts"][part]


def test_tuning_is_found_by_its_hash_and_linked(run_id: str, params: Params) -> None:
    tune_run = store.client().create_run(store.experiment("tenfold-tune")).info.run_id
    records.record_tuning(Run(tune_run), Path(), params)
    assert artifacts(tune_run, "tune") == ["tune/tune.json"]
    records.record_training(Run(run_id), Path(), params)
    data = store.client().get_run(run_id).data
    assert data.tags[runs.TUNE_RUN] == tune_run
    assert data.params["tuned.learning_rate"] == "0.012"


def test_each_trial_of_a_search_is_a_child(run_id: str) -> None:
    values: dict[str, BaseDistribution] = {"learning_rate": FloatDistribution(0.1, 1.0)}
    trial = create_trial(params={"learning_rate": 0.3}, distributions=values, value=0.9, intermediate_values={0: 0.8})
    records.record_trial(Run(run_id), trial)
    (child,) = [
        run for run in store.client().search_runs([store.experiment("tenfold")]) if "tenfold.trial" in run.data.tags
    ]
    assert child.data.tags["mlflow.parentRunId"] == run_id
    assert (child.data.tags["tenfold.trial"], child.info.status) == ("complete", "FINISHED")
    assert child.data.params == {"learning_rate": "0.3"}
    assert points(child.info.run_id, "val/acc") == [(0, 0.8)]
    assert not processes.is_gone(child.data.tags[provenance.PROCESS])


def test_training_from_files(run_id: str, params: Params) -> None:
    records.record_training(Run(run_id), Path(), params)
    records.record_training(Run(run_id), Path(), params)
    assert points(run_id, "train/loss") == [(9, 0.5), (19, 0.3)]
    assert points(run_id, "lr") == [(9, 0.01), (19, 0.001)]
    assert artifacts(run_id, "checkpoint") == ["checkpoint/best.ckpt"]
    assert artifacts(run_id, "train") == ["train/history.csv"]
    assert store.client().get_run(run_id).data.tags[runs.MODEL] == runs.file_sha256(Path("models/best.ckpt"))


def test_only_missing_points_are_added(run_id: str, params: Params) -> None:
    store.client().log_metric(run_id, "train/loss", 0.512345, step=9)
    records.record_training(Run(run_id), Path(), params)
    assert points(run_id, "train/loss") == [(9, 0.512345), (19, 0.3)]


def test_evaluated_numbers_are_what_the_run_shows(run_id: str, params: Params) -> None:
    records.record_training(Run(run_id), Path(), params)
    records.record_evaluation(run_id, Path())
    records.record_evaluation(run_id, Path())
    shown = store.client().get_run(run_id).data.metrics
    for part, values in METRICS.items():
        for name, value in values.items():
            assert shown[f"{part}/{name}"] == value
    assert shown["test/ece"] == 0.004
    assert "test/n" not in shown
    assert points(run_id, "val/acc") == [(9, 0.91), (19, 0.96), (20, 0.995)]
    assert points(run_id, "test/acc") == [(20, 0.994)]
    assert "evaluate/confusion.png" in artifacts(run_id, "evaluate")


def test_changed_evaluation_is_logged_again(run_id: str, params: Params) -> None:
    records.record_training(Run(run_id), Path(), params)
    records.record_evaluation(run_id, Path())
    write_json(Path("reports/metrics.json"), METRICS | {"test": {"loss": math.nan, "acc": 0.5}})
    records.record_evaluation(run_id, Path())
    shown = store.client().get_run(run_id).data.metrics
    assert shown["test/acc"] == 0.5
    assert math.isnan(shown["test/loss"])


def test_model_is_served_from_the_registry(run_id: str, params: Params) -> None:
    records.record_inputs(Run(run_id), Path(), params)
    records.record_evaluation(run_id, Path())
    made = records.record_model(run_id, Path(), params)
    assert (made.name, str(made.version), made.run_id) == ("tenfold-mnist", "1", run_id)
    assert made.tags[registry.TEST_ACC] == "0.994"

    model = mlflow.pyfunc.load_model("models:/tenfold-mnist/1")
    assert model.predict([[[7.0] * 4] * 4] * 2) == [[7.0] * 16] * 2
    assert json.loads(model.metadata.signature.to_dict()["inputs"]) == [{"type": "any", "required": True}]
    folder = Path(mlflow.artifacts.download_artifacts("models:/tenfold-mnist/1"))
    assert store.local_model("models:/tenfold-mnist/1") == folder
    assert store.local_model("models:/tenfold-mnist@champion") is None
    registry.promote_by_hand("tenfold-mnist", "1")
    assert store.local_model("models:/tenfold-mnist@champion") == folder
    for other in ("models:/tenfold-mnist/2", "models:/nobody@champion", f"models:/{made.source}", "runs:/1/model"):
        assert store.local_model(other) is None
    pins = (folder / "requirements.txt").read_text().split()
    assert pins == [f"{name}=={version(name).split('+')[0]}" for name in packaging.REQUIREMENTS]
    example = json.loads((folder / "input_example.json").read_text())
    assert example == {"inputs": [[[7] * 4] * 4], "params": packaging.PARAMS}

    (model_id,) = records._outputs(run_id)
    assert store.client().get_run(run_id).data.tags[runs.VERSION] == "tenfold-mnist/1"
    logged = store.client().get_logged_model(model_id)
    digests = {entry.tags[0].value: entry.dataset.digest for entry in datasets(run_id)}
    measured = {metric.key: (metric.value, metric.dataset_digest) for metric in logged.metrics or []}
    assert measured["test/acc"] == (0.994, digests["test"])
    assert measured["val/loss"] == (0.02, digests["val"])


def test_same_content_makes_one_version_and_other_content_another(run_id: str, params: Params) -> None:
    records.record_evaluation(run_id, Path())
    first = records.record_model(run_id, Path(), params)
    again = store.client().create_run(store.experiment("foo")).info.run_id
    assert records.record_model(again, Path(), params).version == first.version
    assert records.record_model(again, Path(), params).version == first.version
    assert store.client().get_run(again).data.tags[runs.VERSION] == "tenfold-mnist/1"
    assert records._outputs(again) == [registry.logged_model(first)]

    with packaging.MODEL.open("a") as code:
        code.write("# changed\n")
    assert str(records.record_model(run_id, Path(), params).version) == "2"


def test_model_whose_version_is_gone_is_registered_again(run_id: str, params: Params) -> None:
    first = records.record_model(run_id, Path(), params)
    store.client().delete_model_version(first.name, first.version)
    second = records.record_model(run_id, Path(), params)
    assert registry.logged_model(second) == registry.logged_model(first)


@pytest.mark.parametrize("name", ["reports/metrics.json", "reports/tune/tune.json", "models/best.ckpt"])
def test_missing_file_is_named(run_id: str, params: Params, name: str) -> None:
    Path(name).unlink()
    with pytest.raises(TenfoldError, match=name):  # noqa: PT012
        records.record_training(Run(run_id), Path(), params)
        records.record_evaluation(run_id, Path())


def test_nothing_is_recorded_without_a_run(project: Path, params: Params) -> None:
    records.record_inputs(Run(""), Path(), params)
    records.record_tuning(Run(""), Path(), params)
    records.record_training(Run(""), Path(), params)
    assert not store.client().search_runs([store.experiment("tenfold")])
