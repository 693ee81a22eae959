import json
import uuid
from pathlib import Path

import pytest
from mlflow.entities.model_registry import ModelVersion

from tenfold.data.summary import Summary
from tenfold.errors import TenfoldError
from tenfold.params import Export, Params
from tenfold.tracking import registry, runs, store
from tenfold.tracking.registry import Comparison

NAME = "tenfold-mnist"
IMAGES = 100


@pytest.fixture
def export(params: Params) -> Export:
    return params.export


def make(wrong: range | str, data: str = "d", predictions: bool = True) -> ModelVersion:
    """A version with no model behind it, wrong on some of 100 images, or with something else as its accuracy."""
    client = store.client()
    if not client.search_registered_models():
        client.create_registered_model(NAME)
    acc = wrong if isinstance(wrong, str) else 1 - len(wrong) / IMAGES
    tags = {registry.TEST_ACC: str(acc), registry.TEST_DATA: data, runs.MODEL: uuid.uuid4().hex}
    run_id = client.create_run(store.experiment("tenfold")).info.run_id
    if predictions and isinstance(wrong, range):
        rows = "".join(f"{image},a,{'b' if image in wrong else 'a'}\n" for image in range(IMAGES))
        client.log_text(run_id, f"index,actual,predicted\n{rows}", "evaluate/predictions.csv")
    return client.create_model_version(NAME, source="mlruns/x", run_id=run_id, tags=tags)


def aliases() -> dict[str, str]:
    found = store.client().get_registered_model(NAME).aliases
    return {alias: str(number) for alias, number in found.items()}


def tag(number: str, key: str = registry.DECISION) -> str:
    return store.client().get_model_version(NAME, number).tags[key]


def history() -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(store.client().get_registered_model(NAME).tags[registry.HISTORY])
    return found


def make_by_hand(*numbers: str) -> None:
    """Versions, as many as are named, each of which becomes champion by hand when its turn comes."""
    for _ in set(numbers):
        make(range(10))
    for number in numbers:
        registry.promote_by_hand(NAME, number)


def rolled_back() -> list[str]:
    """The champions that rolling back gives, until there is none before; and not without end."""
    found: list[str] = []
    for _ in range(10):
        try:
            registry.roll_back(NAME)
        except TenfoldError:
            with pytest.raises(TenfoldError, match="no champion before"):
                registry.roll_back(NAME)
            break
        found.append(aliases()["champion"])
    return found


@pytest.mark.parametrize(
    ("policy", "first", "second", "champion"),
    [
        ("if_better", range(10), range(4), "2"),  # right on 6 more, wrong on none: p = 0.03
        ("if_better", range(10), range(5), "1"),  # right on 5 more: p = 0.06
        ("if_better", range(10), range(10, 20), "1"),
        ("if_not_worse", range(10), range(10), "2"),
        ("if_not_worse", range(5), range(10), "2"),  # wrong on 5 more: p = 0.06
        ("if_not_worse", range(4), range(10), "1"),
        ("always", range(0), range(50), "2"),
        ("never", range(10), range(0), "1"),
    ],
)
def test_policies(
    export: Export, policy: str, first: range, second: range, champion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert registry.promote(make(first), export) == "champion"
    alias = registry.promote(make(second), export.model_copy(update={"promote": policy}))
    expected = {"champion": "2"} if champion == "2" else {"champion": "1", "challenger": "2"}
    assert aliases() == expected
    assert expected[alias] == "2"
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert f"{NAME} version 2 is now {alias}" in said[1]
    assert tag("2").startswith(alias)


def test_comparison_is_kept_with_version_and_run(export: Export) -> None:
    registry.promote(make(range(10)), export)
    registry.promote(make(range(4, 20)), export)
    version = store.client().get_model_version(NAME, "2")
    compared = json.loads(version.tags[registry.COMPARISON])
    assert compared.pop("p") == pytest.approx(0.1796, abs=1e-4)
    assert compared == {"champion": "1", "both": 80, "only_new": 4, "only_champion": 10, "neither": 6}
    path = store.client().download_artifacts(str(version.run_id), "promotion/2-against-1.md")
    assert "| 80 | 4 |" in Path(path).read_text()


def test_models_that_do_not_differ() -> None:
    same = Comparison.of([True, False], [True, False])
    assert (same.p, same.better, same.worse) == (1.0, False, False)


@pytest.mark.parametrize("acc", ["nan", "inf", "many", ""])
def test_metric_that_is_no_finite_number_never_promotes(export: Export, acc: str) -> None:
    always = export.model_copy(update={"promote": "always"})
    assert registry.promote(make(acc), always) == "challenger"
    with pytest.raises(TenfoldError, match="missing or not finite"):
        registry.promote_by_hand(NAME, "1")
    assert aliases() == {"challenger": "1"}


def test_least_accuracy(export: Export) -> None:
    strict = export.model_copy(update={"min_test_acc": 0.98})
    assert registry.promote(make(range(3)), strict) == "challenger"
    assert registry.promote(make(range(2)), strict) == "champion"


def test_other_test_images_cannot_be_compared(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    registry.promote(make(range(50), data="d"), export)
    assert registry.promote(make(range(1), data="e"), export) == "challenger"
    said = capsys.readouterr().out
    assert "other test images" in said
    assert "tenfold promote 2" in said
    assert registry.promote(make(range(1), data="e"), export.model_copy(update={"promote": "always"})) == "champion"


def test_champion_whose_predictions_have_gone(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    registry.promote(make(range(50), predictions=False), export)
    assert registry.promote(make(range(1)), export) == "challenger"
    assert "no predictions are left" in capsys.readouterr().out


def test_champion_whose_run_was_deleted_is_compared(export: Export) -> None:
    first = make(range(50))
    registry.promote(first, export)
    store.client().delete_run(str(first.run_id))
    assert registry.promote(make(range(1)), export) == "champion"


def test_champion_that_cannot_be_measured_gives_way(export: Export) -> None:
    version = make("nan")
    store.client().set_registered_model_alias(NAME, "champion", version.version)
    assert registry.promote(make(range(80)), export) == "champion"


def test_challenger_that_wins_later_is_no_challenger_any_more(export: Export) -> None:
    registry.promote(make(range(0)), export)
    second = make(range(20))
    registry.promote(second, export)
    assert registry.promote(second, export.model_copy(update={"promote": "always"})) == "champion"
    assert aliases() == {"champion": "2"}
    assert registry.promote(second, export) == "champion"
    assert aliases() == {"champion": "2"}


def test_promoting_by_hand_and_rolling_back(export: Export) -> None:
    for wrong in (20, 10, 5, 50):
        registry.promote(make(range(wrong)), export)
    assert aliases() == {"champion": "3", "challenger": "4"}
    registry.promote_by_hand(NAME, "4")
    assert aliases() == {"champion": "4"}
    registry.roll_back(NAME)
    assert aliases() == {"champion": "3"}
    store.client().delete_model_version(NAME, "2")
    registry.roll_back(NAME)
    assert aliases() == {"champion": "1"}
    with pytest.raises(TenfoldError, match="no champion before version 1"):
        registry.roll_back(NAME)
    assert [entry["version"] for entry in history()] == ["1", "2", "3", "4", "3", "1"]
    assert history()[3]["why"] == "by hand"
    assert history()[-1]["why"] == "rolled back from version 3"
    assert tag("1") == "champion: rolled back from version 3"
    assert tag("3") == "no champion any more, version 1 is: rolled back from version 3"
    assert tag("4") == "no champion any more, version 3 is: rolled back from version 4"


@pytest.mark.parametrize("policy", ["if_better", "always"])
def test_what_was_rolled_back_stays_back(export: Export, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    export = export.model_copy(update={"promote": policy})
    registry.promote(make(range(50)), export)
    second = make(range(10))
    registry.promote(second, export)
    registry.roll_back(NAME)
    for _ in range(2):
        assert registry.promote(second, export) == ""
        assert aliases() == {"champion": "1"}
        said = capsys.readouterr().out.splitlines()[-1]
        assert "version 2 is left as it is (no champion any more, version 1 is: rolled back from version 2)" in said
        assert "tenfold promote 2" in said
    registry.promote(make(range(1)), export)
    assert aliases() == {"champion": "3"}
    registry.promote(second, export.model_copy(update={"promote": "always"}))
    assert aliases() == {"champion": "3"}
    registry.promote_by_hand(NAME, "2")
    assert aliases() == {"champion": "2"}


def test_choice_by_hand_holds_against_what_was_decided_on_before_it(export: Export) -> None:
    versions = [make(range(wrong)) for wrong in (50, 10, 20)]
    for version in versions:
        registry.promote(version, export)
    undecided = make(range(30))
    registry.promote_by_hand(NAME, "1")
    assert registry.promote(versions[1], export) == ""
    assert registry.promote(versions[2], export) == "challenger"
    assert aliases() == {"champion": "1", "challenger": "3"}
    assert registry.promote(undecided, export) == "champion"  # nobody had looked at it: as if made later
    assert registry.promote(make(range(1)), export) == "champion"


def test_promoting_the_champion_by_hand_changes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_by_hand("1")
    before = store.client().get_registered_model(NAME).tags
    registry.promote_by_hand(NAME, "1")
    assert "version 1 is the champion already" in capsys.readouterr().out
    assert store.client().get_registered_model(NAME).tags == before


def test_rolling_back_goes_back_and_never_round(project: Path) -> None:
    make_by_hand("1", "2", "3", "1")
    assert rolled_back() == ["3", "2", "1"]
    assert [entry["version"] for entry in history()] == ["1", "2", "3", "1", "3", "2", "1"]
    registry.promote_by_hand(NAME, "3")
    assert rolled_back() == ["1"]


def test_rolling_back_over_a_deleted_version_to_the_same(project: Path) -> None:
    make_by_hand("1", "2", "1")
    store.client().delete_model_version(NAME, "2")
    assert rolled_back() == []


def test_rolling_back_with_a_champion_after_itself_in_the_history(project: Path) -> None:
    make_by_hand("1")
    entry = {"version": "1", "before": "1", "time": 0, "why": "by hand"}
    store.client().set_registered_model_tag(NAME, registry.HISTORY, json.dumps([entry] * 2))
    assert rolled_back() == []


def test_rolling_back_a_champion_that_was_set_elsewhere(project: Path) -> None:
    make_by_hand("1", "2")
    store.client().set_registered_model_alias(NAME, "champion", make(range(1)).version)
    assert rolled_back() == ["2", "1"]


def test_rolling_back_without_a_champion(project: Path) -> None:
    make_by_hand("1", "2")
    store.client().delete_registered_model_alias(NAME, "champion")
    with pytest.raises(TenfoldError, match="no champion before the first"):
        registry.roll_back(NAME)


def test_rolling_back_to_a_version_that_cannot_be_measured(export: Export) -> None:
    store.client().set_registered_model_alias(NAME, "champion", make("nan").version)
    registry.promote(make(range(80)), export)
    with pytest.raises(TenfoldError, match="version 1: its test accuracy is missing or not finite"):
        registry.roll_back(NAME)
    assert aliases() == {"champion": "2"}


def test_history_fits_the_database(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's column holds 5,000 characters."""
    monkeypatch.setattr(registry, "describe", lambda *_: None)  # takes as long as all the rest
    make_by_hand("1", "2")
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_decide", lambda *_: (True, "ä" * 9000))
        registry.promote(make(range(1)), None)  # type: ignore[arg-type]
    for number in ["1", "2"] * 40:
        registry.promote_by_hand(NAME, number)
        text = store.client().get_registered_model(NAME).tags[registry.HISTORY]
        assert len(text) <= 5000
    assert len(text) > 4800
    assert (history()[-1]["version"], history()[-1]["before"]) == ("2", "1")
    registry.roll_back(NAME)
    assert aliases() == {"champion": "1"}


def test_what_is_not_there_is_named(project: Path) -> None:
    with pytest.raises(TenfoldError, match="no such registered model"):
        registry.roll_back(NAME)
    make(range(1))
    with pytest.raises(TenfoldError, match="no version 7"):
        registry.promote_by_hand(NAME, "7")


def test_version_is_found_by_all_its_tags(project: Path) -> None:
    identity = {"tenfold.model_sha256": "a", registry.SERVED: "b"}
    summary = Summary.load()
    logged = store.client().create_logged_model(store.experiment("tenfold"))
    run = store.client().create_run(store.experiment("tenfold"))
    assert registry.find(NAME, identity) is None
    made = registry.register(NAME, logged.model_id, run.info.run_id, identity=identity, acc=0.5, summary=summary)
    found = registry.find(NAME, identity)
    assert found is not None
    assert found.version == made.version
    assert registry.logged_model(found) == logged.model_id
    assert registry.find(NAME, identity | {registry.SERVED: "c"}) is None
    assert registry.find("tenfold-digits", identity) is None
