"""The registered model: one version per content, and who is its champion."""

from __future__ import annotations

import csv
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.data.summary import Summary
from tenfold.errors import TenfoldError
from tenfold.params import Export
from tenfold.tracking import cards, runs, store
from tenfold.tracking.journal import now_ms

if TYPE_CHECKING:
    from mlflow.entities import Run
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
"""Tag of a version: what was decided on it when it was last looked at, and why."""
COMPARISON = "tenfold.comparison"
"""Tag of a version: how it compared with the champion of the time, as JSON."""
HISTORY = "tenfold.champion_history"
"""Tag of a registered model: who became champion when, after whom and why, as JSON; the latest last."""
CHOSEN = "tenfold.chosen_from"
"""Tag of a registered model: the newest version that there was when somebody last chose the champion by hand."""
LONGEST_HISTORY, LONGEST_WHY = 5000, 300
"""In characters: PostgreSQL takes no longer tag of a registered model, and the reason is whole on the version."""
SIGNIFICANT = 0.05
"""A difference is believed if chance alone would make one as large less often than this."""


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
    acc: float,
    summary: Summary,
) -> ModelVersion:
    """Make a version of a logged model, with what `promote` needs to know as tags."""
    from mlflow.exceptions import MlflowException

    client = store.client()
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return client.create_model_version(
        name,
        source=f"{SOURCE}{model_id}",
        run_id=run_id,
        model_id=model_id,
        tags={**identity, TEST_ACC: repr(acc), TEST_DATA: summary.sha256["test"]},
    )


@dataclass(frozen=True)
class Comparison:
    """Two models on the same test images: how many both get right, only one, or neither; and McNemar's exact p."""

    both: int
    only_new: int
    only_champion: int
    neither: int
    p: float

    @classmethod
    def of(cls, new: list[bool], champion: list[bool]) -> Comparison:
        """Compare what each got right. `p`: how often chance alone would make them differ so much (two-sided)."""
        from scipy.stats import binomtest

        pairs = list(zip(new, champion, strict=True))
        gained, lost = pairs.count((True, False)), pairs.count((False, True))
        p = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
        return cls(pairs.count((True, True)), gained, lost, pairs.count((False, False)), float(p))

    @property
    def better(self) -> bool:
        """Whether the new one is significantly better."""
        return self.only_new > self.only_champion and self.p < SIGNIFICANT

    @property
    def worse(self) -> bool:
        """Whether the new one is significantly worse."""
        return self.only_new < self.only_champion and self.p < SIGNIFICANT

    def __str__(self) -> str:
        return f"alone right on {self.only_new} images against {self.only_champion}, p = {self.p:.3g}"


@store.answering()
def promote(version: ModelVersion, export: Export) -> str:
    """Make a version the champion if `export` says so, else the challenger; prints the decision in one line.

    Versions are compared on the same test images, by McNemar's exact test on those where one is right and the other
    wrong. Only `always` replaces a champion that was measured on others or whose predictions have gone, and nothing
    promotes a version whose accuracy is missing or not finite. A choice by hand holds against each version that was
    decided on before it: only `promote_by_hand` brings back what somebody passed over or rolled back.

    Returns:
        The alias that the version now has; empty if it has none.
    """
    client, name, number = store.client(), version.name, str(version.version)
    with store.lock():
        aliases, version = _aliases(name), client.get_model_version(name, number)
        champion, decided = aliases.get(CHAMPION), version.tags.get(DECISION)
        if champion == number:
            print(f"{name} version {number} is the champion already")
            describe(name, number)
            return CHAMPION
        if decided and int(number) <= _tag(name, CHOSEN, "0"):
            print(
                f"{name} version {number} is left as it is ({decided}): the champion was chosen by hand since. "
                f"To have it all the same: tenfold promote {number}"
            )
            return CHALLENGER if aliases.get(CHALLENGER) == number else ""
        old = client.get_model_version(name, champion) if champion is not None else None
        comparison = _compare(version, old) if old else None
        wins, reason = _decide(version, old, comparison, export)
        if old and comparison:
            _log_table(version, old, comparison, reason)
        alias = CHAMPION if wins else CHALLENGER
        if wins:
            _crown(name, number, reason)
        else:
            client.set_registered_model_alias(name, CHALLENGER, number)
            client.set_model_version_tag(name, number, DECISION, f"{CHALLENGER}: {reason}")
            describe(name, number)
    print(f"{name} version {number} is now {alias}: {reason}")
    return alias


@store.answering()
def promote_by_hand(name: str, number: str) -> None:
    """Make a version the champion because somebody says so.

    Raises:
        TenfoldError: there is no such version, or its accuracy is missing or not finite.
    """
    with store.lock():
        if _aliases(name).get(CHAMPION) == number:
            print(f"{name} version {number} is the champion already")
        else:
            _choose(name, number, "by hand")


@store.answering()
def roll_back(name: str) -> None:
    """Give the alias back to the version that had it before the champion; again: to the one before that.

    Raises:
        TenfoldError: there is no champion, or none before it, or the accuracy of that is missing or not finite.
    """
    with store.lock():
        number, there = _aliases(name).get(CHAMPION, ""), _numbers(name)
        earlier = (found for found in reversed(_line(name)) if found in there and found != number)
        before = next(earlier, "") if number else ""
        if not before:
            raise TenfoldError(f"{name}: there is no champion before {f'version {number}' if number else 'the first'}")
        _choose(name, before, f"rolled back from version {number}", rollback=True)


def _choose(name: str, number: str, why: str, rollback: bool = False) -> None:
    """Make a version the champion by hand; it must be there, with an accuracy."""
    if _acc(_version(name, number)) is None:
        raise TenfoldError(
            f"{name} version {number}: its test accuracy is missing or not finite, so it is not promoted"
        )
    store.client().set_registered_model_tag(name, CHOSEN, str(max(map(int, _numbers(name)))))
    _crown(name, number, why, rollback)
    print(f"{name} version {number} is now {CHAMPION}: {why}")


def _crown(name: str, number: str, why: str, rollback: bool = False) -> None:
    client, aliases = store.client(), _aliases(name)
    before = aliases.get(CHAMPION, "")
    entry = {"version": number, "before": before, "time": now_ms(), "why": why[:LONGEST_WHY]}
    history = [*_tag(name, HISTORY, "[]"), entry | ({"rollback": True} if rollback else {})]
    while len(text := json.dumps(history)) > LONGEST_HISTORY:
        del history[0]
    client.set_registered_model_tag(name, HISTORY, text)
    client.set_registered_model_alias(name, CHAMPION, number)
    client.set_model_version_tag(name, number, DECISION, f"{CHAMPION}: {why}")
    if before:
        client.set_model_version_tag(name, before, DECISION, f"no {CHAMPION} any more, version {number} is: {why}")
    if aliases.get(CHALLENGER) == number:
        client.delete_registered_model_alias(name, CHALLENGER)
    describe(name, *filter(None, (before, number)))


def describe(name: str, *numbers: str) -> None:
    """Say of versions what was decided on them, and of the model who is champion; what somebody has edited is left."""
    client, champion = store.client(), _aliases(name).get(CHAMPION)
    for number in numbers:
        version = client.get_model_version(name, number)
        text = cards.version(version, _run(version), version.tags.get(DECISION, ""))
        if mark := cards.mark(text, version.description, version.tags):
            client.set_model_version_tag(name, number, cards.WRITTEN, mark)
            client.update_model_version(name, number, text)
    if champion:
        version, model = client.get_model_version(name, champion), client.get_registered_model(name)
        text = cards.card(version, _run(version))
        if mark := cards.mark(text, model.description, model.tags):
            client.set_registered_model_tag(name, cards.WRITTEN, mark)
            client.update_registered_model(name, text)


def _line(name: str) -> list[str]:
    """The champions up to the present one, the latest last, without those that were rolled back."""
    line: list[str] = []
    for entry in _tag(name, HISTORY, "[]"):
        if not entry.get("rollback"):
            line += [entry["before"], entry["version"]]
        while line and line[-1] != entry["version"]:
            line.pop()
    return line


def _aliases(name: str) -> Mapping[str, str]:
    from mlflow.exceptions import MlflowException

    try:
        found = store.client().get_registered_model(name).aliases
        return {alias: str(number) for alias, number in found.items()}
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise TenfoldError(f"{name}: no such registered model. Make it: dvc repro") from None


def _tag(name: str, key: str, default: str) -> Any:
    return json.loads(store.client().get_registered_model(name).tags.get(key, default))


def _numbers(name: str) -> set[str]:
    return {str(found.version) for found in store.client().search_model_versions(f"name = '{name}'")}


def _version(name: str, number: str) -> ModelVersion:
    _aliases(name)
    if number not in _numbers(name):
        raise TenfoldError(f"{name}: no version {number}")
    return store.client().get_model_version(name, number)


def _acc(version: ModelVersion) -> float | None:
    """A version's test accuracy; None if it is missing or not finite."""
    try:
        acc = float(version.tags.get(TEST_ACC, "nan"))
    except ValueError:
        return None
    return acc if math.isfinite(acc) else None


def _decide(
    new: ModelVersion, champion: ModelVersion | None, comparison: Comparison | None, export: Export
) -> tuple[bool, str]:
    """Whether the new version becomes the champion, and why."""
    acc, rival = _acc(new), _acc(champion) if champion else None
    found, against = f"test accuracy {acc}", f"the champion, version {champion.version if champion else None}"
    wins = False
    if acc is None:
        reason = "its test accuracy is missing or not finite"
    elif export.promote == "never":
        reason = f"{found}, export.promote is never"
    elif acc < export.min_test_acc:
        reason = f"{found} is under export.min_test_acc ({export.min_test_acc})"
    elif champion is None or export.promote == "always":
        wins, reason = True, f"{found}, {'export.promote is always' if champion else 'and there was no champion'}"
    elif rival is None:
        wins, reason = True, f"{found}, and that of {against}, is missing or not finite"
    elif new.tags.get(TEST_DATA) != champion.tags.get(TEST_DATA):
        reason = f"{against}, was measured on other test images; to have it all the same: tenfold promote {new.version}"
    elif comparison is None:
        reason = f"no predictions are left of it or of {against}; to have it still: tenfold promote {new.version}"
    else:
        wins = comparison.better if export.promote == "if_better" else not comparison.worse
        reason = f"{found} against {rival} of {against}; {comparison} (export.promote: {export.promote})"
    return wins, reason


def _compare(new: ModelVersion, champion: ModelVersion) -> Comparison | None:
    """Compare two versions if they were measured on the same images and their predictions can be had."""
    if new.tags.get(TEST_DATA) != champion.tags.get(TEST_DATA):
        return None
    first, second = _predictions(new), _predictions(champion)
    if not first or [actual for actual, _ in first] != [actual for actual, _ in second]:
        return None
    return Comparison.of(*([actual == predicted for actual, predicted in rows] for rows in (first, second)))


def _runs(version: ModelVersion) -> list[str]:
    """The runs that may hold a version's evaluation: the newest of its model, and the one it was registered from."""
    newest = runs.find_run(version.tags.get(runs.MODEL, ""))
    return [run for run in (newest, version.run_id) if run]


def _run(version: ModelVersion) -> Run | None:
    """The run that a version was registered from, or the newest of its model; None if they have gone."""
    run = runs.get_run(str(version.run_id)) if version.run_id else None
    newest = None if run else runs.find_run(version.tags.get(runs.MODEL, ""))
    return runs.get_run(newest) if newest else run


def _predictions(version: ModelVersion) -> list[tuple[str, str]]:
    """The true and the predicted class of each test image, from a run's artifacts; empty if there are none."""
    from mlflow.exceptions import MlflowException

    for run_id in _runs(version):
        try:
            with tempfile.TemporaryDirectory() as folder:
                file = store.client().download_artifacts(run_id, "evaluate/predictions.csv", folder)
                with Path(file).open(newline="", encoding="utf-8") as table:
                    return [(row["actual"], row["predicted"]) for row in csv.DictReader(table)]
        except (MlflowException, OSError):
            continue
    return []


def _log_table(new: ModelVersion, champion: ModelVersion, comparison: Comparison, reason: str) -> None:
    """Put the comparison on the new version, and as a table on its run."""
    pair = f"{new.version}-against-{champion.version}"
    store.client().set_model_version_tag(
        new.name, new.version, COMPARISON, json.dumps({"champion": str(champion.version), **asdict(comparison)})
    )
    text = f"""# {new.name}: version {new.version} against version {champion.version}

| of the test images                | version {champion.version} right | version {champion.version} wrong |
|---|---|---|
| version {new.version} right | {comparison.both} | {comparison.only_new} |
| version {new.version} wrong | {comparison.only_champion} | {comparison.neither} |

McNemar's exact test: p = {comparison.p:.4g}. {reason}
"""
    store.client().log_text(_runs(new)[0], text, f"promotion/{pair}.md")
