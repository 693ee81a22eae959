"""The whole pipeline, run once on `digits` in a temporary clone, for all tests that read what it made."""

from __future__ import annotations

import pytest

from tests.checkout import Checkout, Pipeline, clone, commit


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
