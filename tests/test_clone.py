"""A colleague's clone: what DVC brings from a remote is put into an empty store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.checkout import Checkout, Pipeline, commit


@pytest.mark.timeout(600)
def test_new_clone_after_dvc_pull(pipeline: Pipeline, tmp_path: Path) -> None:
    origin = pipeline.checkout
    remote = tmp_path / "remote"
    origin.run("dvc", "remote", "add", "--local", "--default", "team", str(remote))
    origin.run("dvc", "push")
    origin.run("dvc", "remote", "remove", "--local", "team")
    clone = Checkout(tmp_path / "clone")
    made = shutil.ignore_patterns("mlflow.db*", "mlruns", ".tenfold", "cache", "tmp", "raw", "split", "models", "tune")
    shutil.copytree(origin.root, clone.root, ignore=made)
    for name in ("reports/train", "reports/evaluate"):
        shutil.rmtree(clone.root / name)
    commit(clone, "The results")
    clone.run("dvc", "remote", "add", "--default", "team", str(remote))
    clone.run("dvc", "pull")
    assert "Data and pipelines are up to date" in clone.run("dvc", "status")

    for _ in range(2):  # the second time there is nothing left to do
        clone.tenfold("sync")
    (run_id,), (tune_id,) = clone.runs("tenfold"), clone.runs("tenfold-tune")
    (original_id,) = origin.runs("tenfold")[-1:]
    client, there = clone.client(), origin.client()
    run, original = client.get_run(run_id), there.get_run(original_id)
    assert run.data.params == original.data.params
    for name in ("train/loss", "val/acc", "test/acc"):
        curve = {point.step: point.value for point in client.get_metric_history(run_id, name)}
        known = {point.step: point.value for point in there.get_metric_history(original_id, name)}
        assert curve == pytest.approx(known, rel=1e-4, abs=1e-6)
    assert "durations" in run.data.tags["tenfold.replayed"]
    assert run.data.tags["tenfold.tune_run"] == tune_id
    assert run.data.tags["tenfold.model_sha256"] == original.data.tags["tenfold.model_sha256"]
    assert {file.path for file in client.list_artifacts(run_id)} >= {"checkpoint", "train", "evaluate"}
    assert run.inputs is not None
    assert len(run.inputs.dataset_inputs) == 3
    version = client.get_model_version_by_alias("tenfold-digits", "champion")
    assert (str(version.version), version.run_id) == ("1", run_id)
    said = clone.tenfold("promote", status=1)
    assert "either the number of a version or --rollback" in said
    assert "no champion before version 1" in clone.tenfold("promote", "--rollback", status=1)


def test_mlflow_runs_one_stage_in_a_new_clone(project: Checkout, tmp_path: Path) -> None:
    """A clone has the lock of all stages, and the outs of none."""
    project.run("git", "clone", "-q", ".", str(tmp_path / "clone"))
    clone = Checkout(tmp_path / "clone")
    lock = clone.read("dvc.lock")
    for attempt in (1, 2):
        clone.run(*["mlflow", "run", ".", "--env-manager", "local", "-e", "download", "--experiment-name", "one"])
        runs = clone.runs("one")
        assert len(runs) == attempt
        assert clone.client().get_run(runs[0]).info.status == "FINISHED"
        assert clone.read("dvc.lock") == lock
    refused = clone.run(
        *["mlflow", "run", ".", "--env-manager", "local", "-e", "download", "-P", "until=export"], status=None
    )
    assert "--until: given twice" in refused
