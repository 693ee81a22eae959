"""The whole pipeline, as people use it: `dvc repro`, DVC experiments, `mlflow run`, a served model."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.entities import ViewType
from ruamel.yaml import YAML

from tests.checkout import Checkout, Pipeline, clean_environment
from tests.servers import free_port, running

STAGES = ["download", "split", "tune", "train", "evaluate", "export"]
SLOW = pytest.mark.timeout(600)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def the_run(checkout: Checkout) -> Any:
    """The run of the checkpoint in the working tree."""
    wanted = sha256(checkout.root / "models/best.ckpt")
    client = checkout.client()
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(ids, f"tags.`tenfold.model_sha256` = '{wanted}'")
    assert found
    return found[0]


@SLOW
def test_six_stages_run_in_order_and_end_in_files(pipeline: Pipeline) -> None:
    started = [line.split("'")[1] for line in pipeline.output.splitlines() if line.startswith("Running stage")]
    assert started == STAGES
    metrics = json.loads(pipeline.checkout.read("reports/metrics.json"))
    assert {part: set(values) for part, values in metrics.items()} == {
        part: {"loss", "acc"} for part in ("train", "val", "test")
    }
    assert metrics["test"]["acc"] > 0.9


def test_the_training_is_one_run_with_everything_on_it(pipeline: Pipeline) -> None:
    checkout = pipeline.checkout
    run = the_run(checkout)
    client = checkout.client()
    assert run.info.status == "FINISHED"
    assert client.get_experiment(run.info.experiment_id).name == "tenfold"
    assert run.data.params["data.dataset"] == "digits"
    assert run.data.params["train.optimizer.name"] == "adamw"
    metrics = json.loads(checkout.read("reports/metrics.json"))
    for part, values in metrics.items():
        for name, value in values.items():
            assert run.data.metrics[f"{part}/{name}"] == pytest.approx(value)
    history = list(csv.DictReader(checkout.read("reports/train/history.csv").splitlines()))
    curve = [point.value for point in client.get_metric_history(run.info.run_id, "val/acc")]
    assert curve[:-1] == pytest.approx([float(row["val/acc"]) for row in history], abs=1e-6)
    assert {"lr", "throughput/samples_per_s", "time/fit_s"} <= set(run.data.metrics)
    assert any(name.startswith("system/") for name in run.data.metrics)
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"checkpoint", "train", "evaluate"} <= artifacts
    assert {data.dataset.name for data in run.inputs.dataset_inputs} == {"digits"}
    assert len(checkout.runs("tenfold-tune")) == 1
    assert run.data.tags["tenfold.tune_run"] == checkout.runs("tenfold-tune")[0]
    assert re.fullmatch(r"digits compact \d+ epochs lr [\d.]+ batch \d+ seed 42", run.info.run_name)
    note = run.data.tags["mlflow.note.content"]
    assert f"**{100 * metrics['test']['acc']:.2f} % of the " in note
    linked = re.findall(r"/artifacts/([\w/.]+)\)", note)
    assert len(linked) == 6
    assert set(linked) <= {file.path for file in client.list_artifacts(run.info.run_id, "evaluate")}


def test_the_summary_of_the_network_shows_sizes(pipeline: Pipeline) -> None:
    text = pipeline.checkout.read("reports/train/network.txt")
    assert "[1, 1, 28, 28]" in text
    assert "[1, 10]" in text
    assert "params size (MB)" in text


def test_the_model_is_registered_and_champion(pipeline: Pipeline) -> None:
    client = pipeline.checkout.client()
    version = client.get_model_version_by_alias("tenfold-digits", "champion")
    assert version.tags["tenfold.model_sha256"] == sha256(pipeline.checkout.root / "models/best.ckpt")
    assert "test images classified correctly (95 % interval " in str(version.description)
    card = str(client.get_registered_model("tenfold-digits").description)
    assert f"(#/models/tenfold-digits/versions/{version.version})" in card
    assert "28 rows of 28 pixels" in card


def test_both_finders_are_used_by_train(pipeline: Pipeline) -> None:
    tuned = json.loads(pipeline.checkout.read("reports/tune/tune.json"))
    assert tuned["learning_rate"]["source"] == "finder"
    assert tuned["batch_size"]["source"] == "power"
    run = the_run(pipeline.checkout)
    assert float(run.data.params["tuned.learning_rate"]) == tuned["learning_rate"]["value"]
    rates = [p.value for p in pipeline.checkout.client().get_metric_history(run.info.run_id, "lr")]
    assert max(rates) <= tuned["learning_rate"]["value"] * 1.0001
    steps = int(pipeline.checkout.read("reports/train/history.csv").splitlines()[1].split(",")[1])
    images = json.loads(pipeline.checkout.read("data/split/summary.json"))["counts"]["train"]
    assert steps == images // tuned["batch_size"]["value"]


def test_nothing_to_do_runs_nothing(pipeline: Pipeline) -> None:
    before = pipeline.checkout.runs("tenfold")
    output = pipeline.checkout.run("dvc", "repro")
    assert "Running stage" not in output
    assert "Data and pipelines are up to date" in output
    assert pipeline.checkout.runs("tenfold") == before


def test_outs_hold_no_path_of_this_machine(pipeline: Pipeline) -> None:
    root = pipeline.checkout.root
    for folder in ("models", "reports", "data/split"):
        for file in (root / folder).rglob("*"):
            if file.is_file():
                content = file.read_bytes()
                assert root.name.encode() not in content, file
                assert b"site-packages" not in content, file


@SLOW
def test_forced_again_everything_is_the_same_bit_for_bit(pipeline: Pipeline) -> None:
    checkout = pipeline.checkout
    before = {name: checkout.read(name) for name in ("dvc.lock", "reports/metrics.json")}
    runs = checkout.runs("tenfold")
    output = checkout.run("dvc", "repro", "--force")
    assert output.count("Running stage") == len(STAGES)
    assert {name: checkout.read(name) for name in before} == before
    assert len(checkout.runs("tenfold")) == len(runs) + 1
    versions = checkout.client().search_model_versions("name = 'tenfold-digits'")
    assert [int(version.version) for version in versions] == [1]


@SLOW
def test_dvc_experiments_temporary_and_queued_land_in_the_same_store(pipeline: Pipeline) -> None:
    checkout = pipeline.checkout
    before = checkout.runs("tenfold")
    weights = sha256(checkout.root / "models/best.ckpt")
    checkout.run("dvc", "exp", "run", "--temp", "--name", "short", "-S", "train.max_epochs=1")
    checkout.run("dvc", "exp", "run", "--queue", "--name", "queued", "-S", "train.max_epochs=2")
    checkout.run("dvc", "exp", "run", "--run-all")
    assert sha256(checkout.root / "models/best.ckpt") == weights
    new = [checkout.client().get_run(run) for run in checkout.runs("tenfold") if run not in before]
    assert sorted(run.data.params["train.max_epochs"] for run in new) == ["1", "2"]
    assert {run.info.status for run in new} == {"FINISHED"}
    assert all("test/acc" in run.data.metrics for run in new)
    for run in new:
        assert run.info.artifact_uri.startswith(str(checkout.root / "mlruns"))
    table = json.loads(checkout.run("dvc", "exp", "show", "--json"))
    names = {experiment["name"] for row in table for experiment in row["experiments"] or []}
    assert {"short", "queued"} <= names
    output = checkout.run("dvc", "metrics", "diff", "HEAD", "short", "--json")
    assert "test.acc" in json.loads(output.splitlines()[-1])["reports/metrics.json"]  # of HEAD, no arrays are here


def test_dvc_plots(pipeline: Pipeline) -> None:
    checkout = pipeline.checkout
    output = checkout.run("dvc", "plots", "show", "--out", "plots")
    page = (checkout.root / "plots/index.html").read_text(encoding="utf-8")
    assert "index.html" in output
    assert "val/acc" in page
    assert "predicted" in page
    assert page.count("<img") == 7
    assert "<title>Tenfold: plots</title>" in page


def test_dvc_tables_fit_a_terminal(pipeline: Pipeline) -> None:
    table = pipeline.checkout.run("dvc", "metrics", "show")
    assert max(map(len, table.splitlines())) <= 100
    options = ("--only-changed", "--keep", "val|test", "--drop", ".*/")
    table = pipeline.checkout.run("dvc", "exp", "show", *options, "--csv")
    assert {"val.loss", "val.acc", "test.loss", "test.acc"} <= set(table.splitlines()[0].split(","))
    assert len(table.splitlines()[0].split(",")) < 20


@SLOW
def test_mlflow_run_with_other_settings(pipeline: Pipeline) -> None:
    checkout = pipeline.checkout
    settings, models = checkout.read("params.yaml"), sha256(checkout.root / "models/best.ckpt")
    command = "mlflow run . --env-manager local -P learning_rate=0.003 -P max_epochs=1 --experiment-name foo"
    for attempt in (1, 2):  # the second time every stage is cached, and the outer run is filled all the same
        output = checkout.run(*command.split())
        assert checkout.read("params.yaml") == settings
        assert sha256(checkout.root / "models/best.ckpt") == models
        runs = checkout.runs("foo")
        assert len(runs) == attempt
        client = checkout.client()
        run = client.get_run(runs[0])
        assert run.info.status == "FINISHED", output
        assert run.data.params["train.learning_rate"] == "0.003"
        assert run.data.params["train.max_epochs"] == "1"
        assert run.data.params["data.dataset"] == "digits"
        assert len(client.get_metric_history(runs[0], "val/acc")) == 2  # one epoch, and the evaluation
        assert 0 <= run.data.metrics["test/acc"] <= 1
        assert "mlflow.parentRunId" not in run.data.tags
        assert run.outputs is not None
        assert run.outputs.model_outputs
        assert len(checkout.runs("Default")) == 0
        assert run.info.run_name == "digits compact 1 epoch lr 0.003 batch 64 seed 42"


def test_mlflow_run_refuses_an_unknown_setting_by_name(pipeline: Pipeline) -> None:
    checkout = pipeline.checkout
    settings = checkout.read("params.yaml")
    command = "mlflow run . --env-manager local -P lerning_rate=0.003 --experiment-name refused"
    output = checkout.run(*command.split(), status=None)
    assert "--lerning_rate: no such setting; did you mean --learning_rate?" in output
    assert checkout.read("params.yaml") == settings
    assert checkout.client().get_run(checkout.runs("refused")[0]).info.status == "FAILED"


def test_mlflow_run_that_fails_leaves_the_settings(pipeline: Pipeline) -> None:
    checkout = pipeline.checkout
    settings = checkout.read("params.yaml")
    command = "mlflow run . --env-manager local -P split_val_size=5000 --experiment-name failing"
    output = checkout.run(*command.split(), status=None)
    assert "split.val_size" in output
    assert checkout.read("params.yaml") == settings
    assert checkout.run("git", "status", "--porcelain", "params.yaml") == ""
    assert checkout.client().get_run(checkout.runs("failing")[0]).info.status == "FAILED"


def test_sync_rebuilds_a_lost_store(pipeline: Pipeline, tmp_path: Path) -> None:
    checkout = pipeline.checkout
    original = the_run(checkout)
    elsewhere = f"sqlite:///{tmp_path / 'new.db'}"
    for _ in range(2):  # the second time there is nothing left to do
        checkout.tenfold("sync", MLFLOW_TRACKING_URI=elsewhere)
    from mlflow import MlflowClient

    client = MlflowClient(elsewhere, elsewhere)
    experiment = client.get_experiment_by_name("tenfold")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL)
    assert len(runs) == 1
    for name in ("train/loss", "val/acc", "test/acc"):
        assert runs[0].data.metrics[name] == pytest.approx(original.data.metrics[name])
    assert runs[0].data.params == original.data.params
    assert "tenfold.replayed" in runs[0].data.tags
    assert int(client.get_model_version_by_alias("tenfold-digits", "champion").version) == 1


@pytest.fixture(scope="module")
def served(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real `mlflow models serve` of the champion."""
    port, checkout = free_port(), pipeline.checkout
    checkout.tenfold("promote", "1")  # whatever the experiments of other tests have won
    command = f"mlflow models serve -m models:/tenfold-digits@champion --env-manager local --port {port}".split()
    environment = clean_environment() | {"MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"}
    address, log = f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("served") / "log"
    with running(command, f"{address}/ping", checkout.root, environment, log):
        yield address


def post(address: str, inputs: object) -> list[dict[str, Any]]:
    body = json.dumps({"inputs": inputs}).encode()
    request = urllib.request.Request(f"{address}/invocations", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        predictions: list[dict[str, Any]] = json.load(answer)["predictions"]
        return predictions


@SLOW
@pytest.mark.parametrize("count", [1, 7, 256])
def test_the_served_champion_predicts_what_the_evaluation_says(pipeline: Pipeline, served: str, count: int) -> None:
    images = np.load(pipeline.checkout.root / "data/split/test/images.npy")[:count, 0].tolist()
    rows = list(csv.DictReader(pipeline.checkout.read("reports/evaluate/predictions.csv").splitlines()))
    answers = post(served, images)
    assert [answer["name"] for answer in answers] == [row["predicted"] for row in rows[:count]]
    probabilities = [answer["probability"] for answer in answers]
    assert probabilities == pytest.approx([float(row["probability"]) for row in rows[:count]], abs=1e-4)


@pytest.mark.parametrize("pixel", [0.5, -1, 256, None, "7", float("nan")])
def test_the_served_champion_refuses_what_is_no_pixel(pipeline: Pipeline, served: str, pixel: object) -> None:
    image = np.load(pipeline.checkout.root / "data/split/test/images.npy")[0, 0].tolist()
    with pytest.raises(urllib.error.HTTPError) as raised:
        post(served, [[[pixel, *image[0][1:]], *image[1:]]])
    assert raised.value.code == 400
    assert len(raised.value.read()) < 2000
    assert len(post(served, [image])) == 1


def test_the_lock_is_refreshed_with_the_pipeline() -> None:
    """The committed dvc.lock knows the commands and the code that are committed with it."""
    project = Path(__file__).parents[1]
    yaml = YAML(typ="safe")
    lock, stages = yaml.load(project / "dvc.lock")["stages"], yaml.load(project / "dvc.yaml")["stages"]
    assert list(lock) == list(stages)
    for name, stage in stages.items():
        assert lock[name]["cmd"] == stage["cmd"]
        for dep in lock[name]["deps"]:
            file = project / dep["path"]
            if dep["path"].startswith("src/"):
                assert hashlib.md5(file.read_bytes()).hexdigest() == dep["md5"], f"dvc.lock is behind {dep['path']}"
