"""Recipes fit the schema, change what they say and nothing else, and `balanced` undoes them all."""

from __future__ import annotations

import difflib
import shlex
import shutil
from pathlib import Path

import pytest
from dvc.utils.hydra import apply_overrides

from tenfold import recipes
from tenfold.errors import TenfoldError
from tenfold.params import Params
from tests.checkout import PROJECT, clean_environment

NAMES = sorted(file.stem for file in (PROJECT / "recipes").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped settings and recipes, in a folder of their own."""
    shutil.copy(PROJECT / "params.yaml", tmp_path)
    shutil.copytree(PROJECT / "recipes", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)


def test_each_recipe_says_what_it_is_for() -> None:
    assert {"article", "balanced", "best", "fast", "low-data"} <= set(NAMES)
    assert list(recipes.describe()) == NAMES
    assert all(len(meaning) > 20 for meaning in recipes.describe().values())


def test_balanced_is_what_is_shipped_and_undoes_all_others() -> None:
    shipped = Params.load().flat()
    balanced = recipes.load("balanced")
    assert balanced == {key: shipped[key] for key in balanced}
    assert set(balanced) == {key for name in NAMES for key in recipes.load(name)}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_changes_what_it_says_and_nothing_else(name: str) -> None:
    text, shipped = Path("params.yaml").read_text(), Params.load().flat()
    changed = recipes.apply(name)
    assert Params.load().flat() == shipped | recipes.load(name)
    expected = {key: (shipped[key], value) for key, value in recipes.load(name).items() if value != shipped[key]}
    assert changed == expected
    lines = list(difflib.ndiff(text.splitlines(), Path("params.yaml").read_text().splitlines()))
    assert sum(line.startswith("+ ") for line in lines) == len(expected)
    assert sum(line.startswith("- ") for line in lines) == len(expected)
    recipes.apply("balanced")
    assert Path("params.yaml").read_text() == text


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_as_arguments_means_the_same_to_dvc(name: str) -> None:
    arguments = shlex.split(recipes.overrides(name))
    assert arguments[::2] == ["-S"] * len(recipes.load("balanced"))
    recipes.apply("low-data")  # whichever recipe held before
    apply_overrides("params.yaml", arguments[1::2])
    assert Params.load().flat() == Params.load(PROJECT / "params.yaml").flat() | recipes.load(name)


def test_other_settings_stay() -> None:
    Path("params.yaml").write_text(Path("params.yaml").read_text().replace("seed: 42", "seed: 7  # mine"))
    recipes.apply("fast")
    assert "seed: 7  # mine\n" in Path("params.yaml").read_text()


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (None, r"recipe 'quick': there is none\. Allowed: article, "),
        ("train:\n  max_epoch: 1\n", "train.max_epoch: unknown key"),
        ("train:\n  max_epochs: 0\n", "params.yaml with recipe quick: train.max_epochs: should be greater than"),
        ("train: [\n", "is not valid YAML"),
    ],
)
def test_what_is_no_recipe_is_refused_and_nothing_is_written(recipe: str | None, message: str) -> None:
    before = Path("params.yaml").read_bytes()
    if recipe:
        Path("recipes/quick.yaml").write_text(f"# A wrong one, for this test.\n{recipe}")
    with pytest.raises(TenfoldError, match=message):
        recipes.apply("quick")
    assert Path("params.yaml").read_bytes() == before


def test_the_verb(tmp_path: Path) -> None:
    import subprocess
    import sys

    shutil.copy(PROJECT / "dvc.yaml", tmp_path)
    environment = clean_environment() | {"PYTHONPATH": str(PROJECT / "src")}

    def tenfold(*arguments: str) -> str:
        command = [sys.executable, "-m", "tenfold", "recipe", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    assert [line.partition(":")[0] for line in tenfold().splitlines()] == NAMES
    assert tenfold("fast", "--overrides").strip() == recipes.overrides("fast")
    assert "train.max_epochs: 4 → 1" in tenfold("fast")
