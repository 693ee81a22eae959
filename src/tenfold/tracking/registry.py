"""The registered model: one version per content, and who is its champion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenfold.data.summary import Summary
from tenfold.params import Export
from tenfold.tracking import runs, store

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

CHAMPION, CHALLENGER = "champion", "challenger"
SOURCE = "models:/"

SERVED = "tenfold.served_sha256"
"""Tag of a version: the hash of its ONNX file and serving code."""
TEST_ACC = "tenfold.test_acc"
"""Tag of a version: accuracy on the test set, a fraction."""
TEST_DATA = "tenfold.test_sha256"
"""Tag of a version: the hash of that test set."""
DECISION = "tenfold.decision"
"""Tag of a version: what `promote` decided when it last looked, and why."""


def find(name: str, identity: Mapping[str, str]) -> ModelVersion | None:
    """The newest version of a registered model that carries all these tags."""
    conditions = [f"name = '{name}'", f"tags.`{runs.MODEL}` = '{identity[runs.MODEL]}'"]
    found = store.client().search_model_versions(" AND ".join(conditions))
    same = [version for version in found if identity.items() <= version.tags.items()]
    return max(same, key=lambda version: int(version.version), default=None)


def logged_model(version: ModelVersion) -> str:
    """The id of the logged model that a version was made of."""
    return str(version.source).removeprefix(SOURCE)


def register(
    name: str,
    model_id: str,
    run_id: str,
    *,
    identity: Mapping[str, str],
    metrics: Mapping[str, float],
    summary: Summary,
) -> ModelVersion:
    """Make a version of a logged model, with what `promote` needs to know as tags."""
    from mlflow.exceptions import MlflowException

    client = store.client()
    try:
        client.create_registered_model(name, description=f"Classifies the images of {summary.dataset}.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    measured = ", ".join(f"{key} {value:.4f}" for key, value in metrics.items())
    return client.create_model_version(
        name,
        source=f"{SOURCE}{model_id}",
        run_id=run_id,
        model_id=model_id,
        description=f"{measured}; {summary.counts['test']} test images",
        tags={**identity, TEST_ACC: repr(metrics["test/acc"]), TEST_DATA: summary.sha256["test"]},
    )


def promote(version: ModelVersion, export: Export) -> str:
    """Make a version the champion if `export` says so, else the challenger; prints the decision in one line.

    Versions are compared by accuracy on the same test images. Only `always` replaces a champion measured on
    others, and nothing promotes a version whose accuracy is missing or not finite.

    Returns:
        The alias that the version now has.
    """
    client, name, number = store.client(), version.name, str(version.version)
    aliases = client.get_registered_model(name).aliases
    champion = aliases.get(CHAMPION)
    if champion is not None and str(champion) == number:
        print(f"{name} version {number} is the champion already")
        return CHAMPION
    new = _Measured.of(version)
    old = _Measured.of(client.get_model_version(name, champion)) if champion is not None else None
    wins, reason = _decide(new, old, export)
    alias = CHAMPION if wins else CHALLENGER
    client.set_registered_model_alias(name, alias, number)
    if wins and str(aliases.get(CHALLENGER)) == number:
        client.delete_registered_model_alias(name, CHALLENGER)
    client.set_model_version_tag(name, number, DECISION, f"{alias}: {reason}")
    print(f"{name} version {number} is now {alias}: {reason}")
    return alias


@dataclass(frozen=True)
class _Measured:
    """A version's accuracy (None if missing or not finite) on a test set."""

    number: str
    acc: float | None
    data: str | None

    @classmethod
    def of(cls, version: ModelVersion) -> _Measured:
        try:
            acc = float(version.tags.get(TEST_ACC, "nan"))
        except ValueError:
            acc = math.nan
        return cls(str(version.version), acc if math.isfinite(acc) else None, version.tags.get(TEST_DATA))


def _decide(new: _Measured, champion: _Measured | None, export: Export) -> tuple[bool, str]:
    """Whether the new version becomes the champion, and why."""
    if new.acc is None:
        return False, "its test accuracy is missing or not finite"
    found = f"test accuracy {new.acc:.4f}"
    if export.promote == "never":
        return False, f"{found}, export.promote is never"
    if new.acc < export.min_test_acc:
        return False, f"{found} is under export.min_test_acc ({export.min_test_acc})"
    if champion is None or export.promote == "always":
        return True, f"{found}, {'export.promote is always' if champion else 'and there was no champion'}"
    if new.data is None or new.data != champion.data:
        return False, f"the champion, version {champion.number}, was measured on other test images"
    rival = -1.0 if champion.acc is None else champion.acc
    wins = new.acc > rival if export.promote == "if_better" else new.acc >= rival
    known = "an unknown one" if champion.acc is None else f"{champion.acc:.4f}"
    return wins, f"{found} against {known} of version {champion.number} (export.promote: {export.promote})"
