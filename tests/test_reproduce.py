from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from tenfold import reproduce
from tenfold.errors import TenfoldError
from tenfold.params import describe
from tenfold.reproduce import flat_names, parse_overrides
from tests.checkout import PROJECT, Checkout, Pipeline, clean_environment

STARTER = "import sys; from tenfold import reproduce; reproduce.PATIENCE_S = 1; reproduce._run(sys.argv[1:])"
STUBBORN = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def test_every_key_has_a_flat_name_of_its_own_that_mlflow_can_format() -> None:
    names = flat_names()
    assert sorted(names.values()) == sorted(describe())
    assert all(name.isidentifier() for name in names)
    assert names["max_epochs"] == "train.max_epochs"
    assert names["tune_batch_size_max"] == "tune.batch_size.max"


def test_both_ways_to_give_a_value() -> None:
    given = ["--learning_rate", "1e-3", "--max-epochs=3", "--optimizer_betas", "[0.8, 0.9]"]
    assert parse_overrides(given) == {
        "train.learning_rate": "1e-3",
        "train.max_epochs": "3",
        "train.optimizer.betas": "[0.8, 0.9]",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--lerning_rate", "1"], "--lerning_rate: no such setting; did you mean --learning_rate?"),
        (["max_epochs", "1"], "max_epochs: no such setting; did you mean --max_epochs?"),
        (["--max_epochs"], "--max_epochs: a value is missing"),
        (["--seed", "1", "--seed=2"], "--seed=2: given twice"),
    ],
)
def test_what_is_refused(given: list[str], message: str) -> None:
    with pytest.raises(TenfoldError) as raised:
        parse_overrides(given)
    assert str(raised.value).startswith(message)


def test_values_reach_dvc_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any letters, and with what DVC's own syntax would read in another way."""
    monkeypatch.chdir(PROJECT)
    commands: list[list[str]] = []

    def run(command: list[str]) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr(reproduce, "_run", run)
    folder = "/home/jürgen/写真, of {2}"
    reproduce.reproduce(["--data_folder", f"'{folder}'", "--max_epochs=3"], None)
    given = [commands[0][place + 1] for place, part in enumerate(commands[0]) if part == "--set-param"]
    assert to_hydra_overrides_of(given) == {"data.folder": folder, "train.max_epochs": 3}


def to_hydra_overrides_of(given: list[str]) -> dict[str, object]:
    """As DVC reads what follows `--set-param`."""
    found = OverridesParser.create().parse_overrides(given)
    return {override.key_or_group: override.value() for override in found}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("command", [["sh", "-c", "sleep 60 & echo up; wait"], [sys.executable, "-c", STUBBORN]])
def test_a_signal_ends_all_that_was_started(number: int, command: list[str]) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, *command], env=clean_environment(), stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout
    assert starter.stdout.readline() == "up\n"
    starter.send_signal(number)
    assert starter.wait(30) == 128 + number
    assert starter.stdout.read() == ""  # ends when all that could write have ended


def test_a_new_clone_is_as_it_was_after_sigterm(project: Checkout, tmp_path: Path) -> None:
    """The pipeline was running; the clone's lock names outs that are nowhere."""
    project.run("git", "clone", "-q", ".", str(tmp_path / "clone"))
    clone = Checkout(tmp_path / "clone")
    before = clone.read("dvc.lock"), clone.run("git", "status", "--porcelain")
    started = subprocess.Popen(
        [sys.executable, "-m", "tenfold", "repro", "--until", "split"],
        cwd=clone.root,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout
    lines = iter(started.stdout)
    while next(lines) != "Running stage 'download':\n":
        pass
    assert (clone.read("dvc.lock"), clone.run("git", "status", "--porcelain")) == before
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) == 143
    assert "Ran experiment" not in "".join(lines)
    assert (clone.read("dvc.lock"), clone.run("git", "status", "--porcelain")) == before


def test_an_outer_run_filled_from_the_cache_says_where_it_comes_from(pipeline: Pipeline) -> None:
    checkout = pipeline.checkout
    client = checkout.client()
    run_id = client.create_run(client.create_experiment(f"outer {time.time_ns()}")).info.run_id
    new = checkout.root / "notes.txt"
    new.write_text("to be kept\n", encoding="utf-8")
    try:
        output = checkout.tenfold("repro", MLFLOW_RUN_ID=run_id)
    finally:
        new.unlink()
    assert "tenfold train" not in output
    tags = client.get_run(run_id).data.tags
    assert tags["mlflow.source.git.commit"] == checkout.run("git", "rev-parse", "HEAD").strip()
    assert tags["mlflow.source.git.dirty"] == "true"
    assert tags["tenfold.dvc_experiment"] == f"mlflow-{run_id[:12]}"
    assert "torch" in tags["tenfold.packages"]
    assert tags["tenfold.host"]
    assert "durations" in tags["tenfold.replayed"]
    assert "+to be kept" in Path(client.download_artifacts(run_id, "source/changes.diff")).read_text(encoding="utf-8")
