"""`tune.search`, on a real Optuna study in SQLite."""

import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from tenfold.data.summary import Summary
from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.training import search
from tests.checkout import PROJECT
from tests.postgres import postgres
from tests.training.test_training import SHIPPED


def settings(storage: Path | str | None, trials: int = 3, **changes: object) -> Params:
    """Small, with everything to search for."""
    url = f"sqlite:///{storage}" if isinstance(storage, Path) else storage
    train = SHIPPED.train.model_copy(
        update={
            "precision": "32-true",
            "optimizer": SHIPPED.train.optimizer.model_copy(update={"weight_decay": "auto"}),
            "augment": SHIPPED.train.augment.model_copy(update={"strength": "auto"}),
        }
    )
    tune = SHIPPED.tune.model_copy(
        update={
            "search": SHIPPED.tune.search.model_copy(
                update={"trials": trials, "epochs": 1, "storage": url, "prune": False} | changes
            ),
            "batch_size": SHIPPED.tune.batch_size.model_copy(update={"min": 4}),
        }
    )
    model = SHIPPED.model.model_copy(update={"width": 4})
    return SHIPPED.model_copy(update={"train": train, "tune": tune, "model": model})


def tried(trials: list[FrozenTrial]) -> list[tuple[dict[str, Any], float | None]]:
    return [(trial.params, trial.value) for trial in sorted(trials, key=lambda trial: trial.number)]


def test_an_interrupted_study_goes_on_to_the_same_trials(stripes: Summary, tmp_path: Path) -> None:
    whole: list[FrozenTrial] = []
    best, trials = search.search(settings(tmp_path / "a.db"), stripes, whole.append)
    assert len(trials) == len(whole) == 3
    assert set(best) == {"learning_rate", "batch_size", "weight_decay", "augment_strength"}
    assert best == max(trials, key=lambda trial: trial.value or 0).params

    def interrupt(trial: FrozenTrial) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search.search(settings(tmp_path / "b.db"), stripes, interrupt)
    rest: list[FrozenTrial] = []
    best_again, again = search.search(settings(tmp_path / "b.db"), stripes, rest.append)
    assert len(rest) == 2
    assert tried(again) == tried(trials)
    assert best_again == best
    nothing: list[FrozenTrial] = []
    search.search(settings(tmp_path / "b.db"), stripes, nothing.append)
    assert nothing == []


def test_a_trial_that_a_process_left_behind_is_tried_again(stripes: Summary, tmp_path: Path) -> None:
    params = settings(tmp_path / "a.db", trials=1)
    study = search._study(params, stripes)
    left = study.ask(search.space(params, 200))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left.set_user_attr(search.PROCESS, f"{platform.node()} {gone.pid} 0.00")
    _, trials = search.search(params, stripes, lambda trial: None)
    assert len(trials) == 1
    states = [trial.state for trial in search._study(params, stripes).get_trials()]
    assert states == [TrialState.FAIL, TrialState.COMPLETE]


def test_the_space_is_what_is_auto_within_its_bounds(stripes: Summary, tmp_path: Path) -> None:
    params = settings(tmp_path / "a.db")
    found = search.space(params, 200)
    assert found["batch_size"].choices == (4, 8)  # type: ignore[attr-defined]  # 12 leave an epoch 16 steps
    rate = found["learning_rate"]
    assert (rate.low, rate.high, rate.log) == (1e-4, 1.0, True)  # type: ignore[attr-defined]
    fixed = params.with_tuned({"learning_rate": 0.1, "weight_decay": 0.0})
    assert set(search.space(fixed, 200)) == {"batch_size", "augment_strength"}


def test_trials_that_lag_behind_are_given_up(stripes: Summary, tmp_path: Path) -> None:
    params = settings(tmp_path / "a.db", trials=6, epochs=2, prune=True)
    study = search._study(params, stripes)
    for _ in range(5):  # all that Optuna's median wants, of a perfection that no trial reaches
        values = search.space(params, 200)
        perfect = {0: 2.0, 1: 2.0}
        drawn = {"learning_rate": 0.01, "batch_size": 4, "weight_decay": 0.1, "augment_strength": 1.0}
        study.add_trial(create_trial(params=drawn, distributions=values, value=2.0, intermediate_values=perfect))
    told: list[FrozenTrial] = []
    search.search(params, stripes, told.append)
    assert [trial.state for trial in told] == [TrialState.PRUNED]
    assert list(told[0].intermediate_values) == [0]


def test_other_code_is_another_study(stripes: Summary, tmp_path: Path) -> None:
    params = settings(tmp_path / "a.db")
    name = search._study(params, stripes).study_name
    assert search._study(params, stripes).study_name == name
    Path("src").unlink()
    shutil.copytree(PROJECT / "src", "src")
    with Path("src/tenfold/modeling/networks.py").open("a") as file:
        file.write("# changed\n")
    assert search._study(params, stripes).study_name != name


def test_a_storage_that_cannot_be_used(stripes: Summary) -> None:
    away = "postgresql://nobody@127.0.0.1:1/x"
    with pytest.raises(TenfoldError, match=f"tune.search.storage: {away}: cannot be used"):
        search.search(settings(away), stripes, lambda trial: None)


def take_part(folder: str, params: Params, summary: Summary) -> None:
    """Another host's part in a study."""
    os.chdir(folder)
    search.search(params, summary, lambda trial: None)


def test_several_processes_share_a_study(stripes: Summary, tmp_path: Path) -> None:
    """On a real PostgreSQL: each trial is tried by one of them, and all find the same."""
    with postgres() as uri:
        params = settings(uri or tmp_path / "shared.db", trials=8)
        search._study(params, stripes)  # the tables
        processes = [
            multiprocessing.get_context("spawn").Process(target=take_part, args=(str(tmp_path), params, stripes))
            for _ in range(2)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        assert [process.exitcode for process in processes] == [0, 0]
        trials = search._study(params, stripes).get_trials()
        assert {trial.state for trial in trials} == {TrialState.COMPLETE}
        assert 8 <= len(trials) <= 9  # two may have begun the last one
        assert len({trial.user_attrs[search.PROCESS] for trial in trials}) == 2
        assert len({tuple(trial.params.values()) for trial in trials}) == len(trials), "the same was tried twice"
