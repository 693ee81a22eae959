from pathlib import Path

import pytest
from mlflow.entities.model_registry import ModelVersion

from tenfold.data.summary import Summary
from tenfold.params import Export, Params
from tenfold.tracking import registry, store

NAME = "tenfold-mnist"


@pytest.fixture
def export(params: Params) -> Export:
    return params.export


def make(acc: float | str, data: str = "d") -> ModelVersion:
    """A version, with no model behind it."""
    client = store.client()
    if not client.search_registered_models():
        client.create_registered_model(NAME)
    tags = {registry.TEST_ACC: str(acc), registry.TEST_DATA: data}
    return client.create_model_version(NAME, source="mlruns/x", tags=tags)


def aliases() -> dict[str, str]:
    found = store.client().get_registered_model(NAME).aliases
    return {alias: str(number) for alias, number in found.items()}


@pytest.mark.parametrize(
    ("policy", "first", "second", "champion"),
    [
        ("if_better", 0.99, 0.991, "2"),
        ("if_better", 0.99, 0.99, "1"),
        ("if_not_worse", 0.99, 0.99, "2"),
        ("if_not_worse", 0.99, 0.9899, "1"),
        ("always", 0.99, 0.5, "2"),
        ("never", 0.99, 0.999, "1"),
    ],
)
def test_policies(
    export: Export, policy: str, first: float, second: float, champion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert registry.promote(make(first), export) == "champion"
    alias = registry.promote(make(second), export.model_copy(update={"promote": policy}))
    expected = {"champion": "2"} if champion == "2" else {"champion": "1", "challenger": "2"}
    assert aliases() == expected
    assert expected[alias] == "2"
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert f"{NAME} version 2 is now {alias}" in said[1]
    assert store.client().get_model_version(NAME, "2").tags[registry.DECISION].startswith(alias)


@pytest.mark.parametrize("acc", ["nan", "inf", "many", ""])
def test_metric_that_is_no_finite_number_never_promotes(export: Export, acc: str) -> None:
    always = export.model_copy(update={"promote": "always"})
    assert registry.promote(make(acc), always) == "challenger"


def test_least_accuracy(export: Export) -> None:
    strict = export.model_copy(update={"min_test_acc": 0.98})
    assert registry.promote(make(0.9799), strict) == "challenger"
    assert registry.promote(make(0.98), strict) == "champion"


def test_other_test_images_cannot_be_compared(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    registry.promote(make(0.9, data="d"), export)
    assert registry.promote(make(0.95, data="e"), export) == "challenger"
    assert "other test images" in capsys.readouterr().out
    assert registry.promote(make(0.95, data="e"), export.model_copy(update={"promote": "always"})) == "champion"


def test_champion_that_cannot_be_measured_gives_way(export: Export) -> None:
    version = make("nan")
    store.client().set_registered_model_alias(NAME, "champion", version.version)
    assert registry.promote(make(0.2), export) == "champion"


def test_challenger_that_wins_later_is_no_challenger_any_more(export: Export) -> None:
    registry.promote(make(0.99), export)
    second = make(0.98)
    registry.promote(second, export)
    assert registry.promote(second, export.model_copy(update={"promote": "always"})) == "champion"
    assert aliases() == {"champion": "2"}
    assert registry.promote(second, export) == "champion"
    assert aliases() == {"champion": "2"}


def test_version_is_found_by_all_its_tags(project: Path) -> None:
    identity = {"tenfold.model_sha256": "a", registry.SERVED: "b"}
    summary = Summary.load()
    metrics = {"test/acc": 0.5}
    logged = store.client().create_logged_model(store.experiment("tenfold"))
    run = store.client().create_run(store.experiment("tenfold"))
    assert registry.find(NAME, identity) is None
    made = registry.register(
        NAME, logged.model_id, run.info.run_id, identity=identity, metrics=metrics, summary=summary
    )
    found = registry.find(NAME, identity)
    assert found is not None
    assert found.version == made.version
    assert registry.logged_model(found) == logged.model_id
    assert registry.find(NAME, identity | {registry.SERVED: "c"}) is None
    assert registry.find("tenfold-digits", identity) is None
