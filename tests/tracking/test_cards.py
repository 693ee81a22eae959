"""What people read on MLflow's pages, in a real store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion

from tenfold.params import Params
from tenfold.tracking import cards, records, registry, runs, store, sync

from .conftest import METRICS, write_json

NAME = "tenfold-mnist"
NOTE = "mlflow.note.content"
INTERVAL = {"acc_low": 0.9901, "acc_high": 0.9976, "loss": 0.03}


@pytest.fixture
def run_id(project: Path) -> str:
    """The run of a model that has been trained, evaluated, registered and made champion."""
    write_json(Path("reports/evaluate/summary.json"), {"test": INTERVAL | {"f1": 0.99, "ece": 0.004, "n": 3}})
    return sync.sync(Path())


def note(run_id: str) -> str:
    return str(store.client().get_run(run_id).data.tags[NOTE])


def card() -> str:
    return str(store.client().get_registered_model(NAME).description)


def version(number: str) -> ModelVersion:
    return store.client().get_model_version(NAME, number)


def another_model(acc: float = 0.9) -> str:
    """Train, evaluate and register another model, by hand; the run of it."""
    Path("models/best.ckpt").write_bytes(b"others")
    write_json(Path("reports/metrics.json"), METRICS | {"test": {"loss": 0.4, "acc": acc}})
    return sync.sync(Path())


def test_the_note_says_what_was_trained_and_how_good_it_is(run_id: str, params: Params) -> None:
    text = note(run_id)
    assert text.startswith("**99.40 % of the 3 test images classified correctly (95 % interval 99.01–99.76 %).**")
    assert "Network `compact` (width 16), trained on 6 images of `mnist`: 4 epochs, learning rate 0.012" in text
    assert "rebuilt from the files" in text
    assert "dvc repro" in text
    where = f"(#/experiments/{store.client().get_run(run_id).info.experiment_id}/runs/{run_id}/artifacts/evaluate/"
    assert [line.partition(where)[2] for line in text.splitlines() if where in line] == [
        f"{name}.png)" for name in cards.PICTURES
    ]
    assert len(text) < store.LONGEST_TAG


def test_the_pictures_of_the_note_are_those_of_the_evaluation() -> None:
    project = Path(__file__).parents[2]
    stage = (project / "src/tenfold/stages/evaluate.py").read_text()
    for name in cards.PICTURES:
        assert f'"{name}"' in stage or f'"{name}.png"' in stage


def test_how_to_do_it_again(run_id: str) -> None:
    store.client().set_tag(run_id, "mlflow.source.git.commit", "abc")
    store.client().set_tag(run_id, "mlflow.source.git.dirty", "true")
    records.record_evaluation(run_id, Path())
    assert "git checkout abc\nmlflow artifacts download" in note(run_id)


def test_what_somebody_has_edited_is_left(run_id: str) -> None:
    client = store.client()
    client.set_tag(run_id, NOTE, "mine")
    client.update_model_version(NAME, "1", "mine")
    client.update_registered_model(NAME, "mine")
    write_json(Path("reports/evaluate/summary.json"), {"test": INTERVAL | {"acc_low": 0.98}})
    assert sync.sync(Path()) == run_id
    assert (note(run_id), version("1").description, card()) == ("mine", "mine", "mine")
    client.update_registered_model(NAME, "")
    sync.sync(Path())
    assert card().startswith("Tells what is on grey images of 4 × 4 pixels")


def test_what_was_written_here_is_brought_up_to_date(run_id: str) -> None:
    write_json(Path("reports/evaluate/summary.json"), {"test": INTERVAL | {"acc_low": 0.98}})
    sync.sync(Path())
    for text in (note(run_id), version("1").description, card()):
        assert "98.00–99.76 %" in str(text)


def test_a_text_is_ours_though_a_process_died_between_mark_and_text() -> None:
    first = cards.mark("one", "", {})
    second = cards.mark("two", "one", {cards.WRITTEN: str(first)})
    assert second
    assert cards.mark("two", "one", {cards.WRITTEN: second}) == second  # the mark is there, the text not yet
    assert cards.mark("two", "two", {cards.WRITTEN: second}) is None
    assert cards.mark("two", "edited", {cards.WRITTEN: second}) is None


def test_the_card_describes_the_champion(run_id: str) -> None:
    text = card()
    assert f"(#/models/{NAME}/versions/1)" in text
    assert "one of 3 classes: `0`, `1`, `2`." in text
    for heading in ("Intended use", "Data and metrics", "Limits", "How to call it"):
        assert f"\n### {heading}\n" in text
    expected = "- test: 3 images, 99.40 % right (95 % interval 99.01–99.76 %), loss 0.0300, F1 0.9900, calibration"
    assert expected in text
    assert "4 rows of 4 pixels" in text
    assert f"models:/{NAME}@champion" in text

    another_model()
    assert f"(#/models/{NAME}/versions/1)" in card()  # no predictions to compare: it is the challenger
    registry.promote_by_hand(NAME, "2")
    assert f"(#/models/{NAME}/versions/2)" in card()
    assert "90.00 % right" in card()
    registry.roll_back(NAME)
    assert f"(#/models/{NAME}/versions/1)" in card()


def test_a_version_says_how_it_compares_with_the_champion(run_id: str) -> None:
    run = store.client().get_run(run_id)
    text = str(version("1").description)
    assert text.startswith("99.40 % of the 3 test images classified correctly (95 % interval 99.01–99.76 %).")
    assert f"[{run.info.run_name}](#/experiments/{run.info.experiment_id}/runs/{run_id})" in text
    assert "Champion: test accuracy 0.994, and there was no champion." in text
    another_model()
    assert "Challenger: no predictions are left" in str(version("2").description)
    registry.promote_by_hand(NAME, "2")
    assert "No champion any more, version 2 is: by hand." in str(version("1").description)


def test_a_version_whose_run_has_gone(run_id: str) -> None:
    store.client().delete_run(run_id)
    registry.describe(NAME, "1")
    assert str(version("1").description).startswith("Its run is gone. champion: test accuracy")
    text = card()
    assert text.startswith("The champion is [version 1]")
    assert "its run is gone" in text
    assert "Not known: the run is gone." in text


def test_many_classes_with_any_name_fit(run_id: str) -> None:
    run = store.client().get_run(run_id)
    profile = {"images": 3, "per_class": {f"`<b>` | {number} " + "long\n" * 40: 1 for number in range(1000)}}
    assert run.inputs is not None
    run.inputs.dataset_inputs[2].dataset._profile = json.dumps(profile)
    text = cards.card(version("1"), run)
    assert len(text) < cards.LONGEST
    assert "How to call it" in text
    assert "one of 1000 classes: ` <b> 0 long long long long lo…`," in text


def test_a_run_that_says_nothing(project: Path) -> None:
    empty: Run = store.client().create_run(store.experiment(runs.TRAINING))
    assert cards.note(empty).startswith("**Not evaluated.**")


def test_an_experiment_says_what_it_is_for(project: Path) -> None:
    for name in (runs.TRAINING, runs.TUNING):
        assert NOTE in store.client().get_experiment(store.experiment(name)).tags
