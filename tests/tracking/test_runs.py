import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.entities import Run

from tenfold.errors import TenfoldError
from tenfold.tracking import journal, runs, store

SLEEPER = """
import sys, time
from tenfold.tracking import runs
with runs.open_run("tenfold", "sleeper") as run:
    print(run.id, flush=True)
    time.sleep(60)
"""


def the_run() -> Run:
    (run,) = store.client().search_runs([store.experiment(runs.TRAINING)])
    return run


def outer_run(monkeypatch: pytest.MonkeyPatch, experiment: str = "foo") -> str:
    run = store.client().create_run(store.experiment(experiment), tags={"mlflow.source.name": "git@host"})
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    return str(run.info.run_id)


def test_run_that_ends_well(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "SAMPLING_S", 0.1)
    monkeypatch.setenv("DVC_EXP_NAME", "bony-snit")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(project)]
    for arguments in (["init", "-q"], ["add", "params.yaml"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], check=True)
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    (project / ".gitignore").write_text("*\n", encoding="utf-8")
    with runs.open_run("tenfold", "mnist compact") as run:
        assert the_run().info.status == "RUNNING"
        while not any(name.startswith("system/") for name in the_run().data.metrics):
            pass
    ended = the_run()
    assert (ended.info.run_id, ended.info.run_name, ended.info.status) == (run.id, "mnist compact", "FINISHED")
    assert "system/cpu_utilization_percentage" in ended.data.metrics
    tags = ended.data.tags
    assert tags["mlflow.source.git.commit"] == commit
    assert tags["mlflow.source.git.dirty"] == "false"
    assert tags["tenfold.dvc_experiment"] == "bony-snit"
    assert tags["tenfold.params_sha256"] == runs.file_sha256(project / "params.yaml")
    assert "mlflow 3" in tags["tenfold.packages"]
    assert tags["tenfold.host"]
    assert tags["tenfold.processor"]


def test_name_that_somebody_has_given_is_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_NAME", "mine")
    for experiment, name in ((runs.TRAINING, "mine"), (runs.TUNING, "x")):
        with runs.open_run(experiment, "x", root=Path()) as run:
            assert store.client().get_run(run.id).info.run_name == name


@pytest.mark.parametrize(("given", "kept"), [(None, False), ("masked-crab-x", True), ("masked-crab-12", False)])
def test_name_of_the_outer_run_is_kept_unless_mlflow_made_it_up(
    project: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, kept: bool
) -> None:
    client = store.client()
    outer = client.create_run(store.experiment("foo"), run_name=given)
    monkeypatch.setenv("MLFLOW_RUN_ID", outer.info.run_id)
    with runs.open_run(runs.TRAINING, "mnist compact", root=Path()):
        pass
    name = client.get_run(outer.info.run_id).info.run_name
    assert name == (outer.info.run_name if kept else "mnist compact")


def test_changed_tree_is_tagged_dirty(project: Path) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(project)]
    for arguments in (["init", "-q"], ["add", "params.yaml"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], check=True)
    with Path("params.yaml").open("a") as file:
        file.write("\n")
    with runs.open_run("tenfold", "x", root=Path()):
        pass
    assert the_run().data.tags["mlflow.source.git.dirty"] == "true"


@pytest.mark.parametrize(
    ("error", "status", "tag"),
    [
        (ValueError("no " + "x" * 9000), "FAILED", "ValueError: no xxx"),
        (SystemExit(3), "FAILED", "SystemExit: 3"),
        (KeyboardInterrupt(), "KILLED", "KeyboardInterrupt"),
        (runs.Terminated(), "KILLED", "Terminated: SIGTERM"),
    ],
)
def test_run_that_fails(project: Path, error: BaseException, status: str, tag: str) -> None:
    with pytest.raises(type(error)), runs.open_run("tenfold", "x", root=Path()):
        raise error
    assert the_run().info.status == status
    assert the_run().data.tags[journal.ERROR].startswith(tag)


def test_exit_after_ctrl_c_as_lightning_does_it(project: Path) -> None:
    def fit() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)

    with pytest.raises(SystemExit), runs.open_run("tenfold", "x", root=Path()):
        fit()
    assert the_run().info.status == "KILLED"
    assert the_run().data.tags[journal.ERROR] == "KeyboardInterrupt"


def test_exit_without_an_error(project: Path) -> None:
    with pytest.raises(SystemExit), runs.open_run("tenfold", "x", root=Path()):
        sys.exit(0)
    assert the_run().info.status == "FINISHED"
    assert journal.ERROR not in the_run().data.tags


def test_sigterm_kills_the_run_and_the_process(project: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with runs.open_run("tenfold", "x", root=Path()):
        assert signal.getsignal(signal.SIGTERM) != handler
    assert signal.getsignal(signal.SIGTERM) == handler

    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    run_id = process.stdout.readline().strip()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    process.stdout.close()
    run = store.client().get_run(run_id)
    assert run.info.status == "KILLED"
    assert run.data.tags[journal.ERROR] == "Terminated: SIGTERM"


def test_store_that_fails_at_the_end_hides_no_error(project: Path) -> None:
    def lose_the_run() -> None:
        with runs.open_run("tenfold", "x", root=Path()) as run:
            store.client().delete_run(run.id)
            raise ZeroDivisionError

    with pytest.warns(UserWarning, match="could not be marked FAILED"), pytest.raises(ZeroDivisionError):
        lose_the_run()


def test_other_ranks_have_no_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with runs.open_run("tenfold", "x") as run:
        assert not run.id
    assert not store.client().search_runs([store.experiment(runs.TRAINING)])


def test_outer_run_is_adopted_and_left_open(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = outer_run(monkeypatch)
    with runs.open_run("tenfold", "x", root=Path()) as run:
        assert run.id == run_id
    outer = store.client().get_run(run_id)
    assert outer.info.status == "RUNNING"
    assert outer.data.tags["mlflow.source.name"] == "git@host"
    assert "tenfold.params_sha256" in outer.data.tags
    with pytest.raises(ValueError, match="bad"), runs.open_run("tenfold", "x", root=Path()):
        raise ValueError("bad")
    assert store.client().get_run(run_id).info.status == "FAILED"


def test_tune_never_adopts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = outer_run(monkeypatch)
    with runs.open_run("tenfold-tune", "x", root=Path()) as run:
        assert run.id != run_id
    assert store.client().get_run(run.id).info.experiment_id == store.experiment("tenfold-tune")


def test_outer_run_of_another_model_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.set_tags(outer_run(monkeypatch), {runs.MODEL: "abc"})
    with pytest.raises(TenfoldError, match=r"MLFLOW_RUN_ID.*a model trained before"), runs.open_run("tenfold", "x"):
        pass


def test_outer_run_that_is_not_there(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = outer_run(monkeypatch)
    store.client().delete_run(run_id)
    with pytest.raises(TenfoldError, match=r"MLFLOW_RUN_ID.*deleted"):
        runs.outer_run()
    monkeypatch.setenv("MLFLOW_RUN_ID", "f" * 32)
    with pytest.raises(TenfoldError, match=r"MLFLOW_RUN_ID.*no run f+"):
        runs.outer_run()


def test_run_is_found_by_its_hash(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = store.client()
    ids = []
    for time, (experiment, sha256) in enumerate([("a", "1"), ("b", "1"), ("tenfold", "2"), ("a", "1")], start=1):
        run = client.create_run(store.experiment(experiment), start_time=time, tags={runs.MODEL: sha256})
        ids.append(run.info.run_id)
    client.delete_run(ids[3])
    assert runs.find_run("1") == ids[1]
    assert runs.find_run("2") == ids[2]
    assert runs.find_run("3") is None
    monkeypatch.setenv("MLFLOW_RUN_ID", ids[0])
    assert runs.find_run("1") == ids[0]
    assert runs.find_run("2") == ids[2]


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TenfoldError, match=r"best\.ckpt: cannot be read.*dvc pull"):
        runs.file_sha256(tmp_path / "best.ckpt")
