"""The whole pipeline, run once on `digits` in a temporary clone, for all tests that read what it made."""

from __future__ import annotations

import pytest

from tests.checkout import Checkout, Pipeline, clone, commit


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that read the one pipeline go to two workers, so that it runs twice only, and they come first."""
    for item in items:
        if "pipeline" in getattr(item, "fixturenames", ()):
            by_itself = item.path.name in {"test_pipeline.py", "test_readme.py"}  # half of the time
            item.add_marker(pytest.mark.xdist_group("pipeline" if by_itself else "pipeline too"))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A clone set up for `digits`."""
    checkout = clone(tmp_path_factory.mktemp("clone") / "project")
    checkout.edit("dataset: mnist", "dataset: digits")
    commit(checkout, "Digits")
    return checkout


@pytest.fixture(scope="session")
def pipeline(project: Checkout) -> Pipeline:
    """The project after one `dvc repro`. Tests that change it leave it as they found it."""
    return Pipeline(project, project.run("dvc", "repro"))
