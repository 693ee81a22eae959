"""The command line: errors, help, completion."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.checkout import Checkout, clean_environment, clone

PROJECT = Path(__file__).parents[1]
BROKEN = """
import sys
import tenfold.recipes
def broken(): raise KeyError("deep inside")
tenfold.recipes.describe = broken
from tenfold.__main__ import main
sys.argv = ["tenfold", *sys.argv[1:]]
main()
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return clone(tmp_path_factory.mktemp("main") / "project")


def tenfold(
    *arguments: str, folder: Path = PROJECT, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenfold", *arguments],
        cwd=folder,
        env=clean_environment() | {"PYTHONPATH": str(PROJECT / "src"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_error_is_one_line() -> None:
    done = tenfold("recipe", "nothing")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(("arguments", "environment"), [(["--debug"], {}), ([], {"TENFOLD_DEBUG": "1"})])
def test_where_it_arose_is_shown_on_request(arguments: list[str], environment: dict[str, str]) -> None:
    done = tenfold(*arguments, "recipe", "nothing", environment=environment)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "recipes.py" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_on_a_terminal(no_color: str, coloured: bool) -> None:
    ours, theirs = pty.openpty()
    environment = clean_environment() | {"PYTHONPATH": str(PROJECT / "src"), "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "tenfold", "recipe", "nothing"],
        cwd=PROJECT,
        env=environment | ({"NO_COLOR": no_color} if no_color else {}),
        stderr=theirs,
    )
    assert process.wait(60) == 1
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert ("\x1b[1;31merror:" in shown) == coloured
    assert "error:" in shown


def test_an_unexpected_error_is_one_line_and_its_traceback_is_kept(checkout: Checkout) -> None:
    output = checkout.run(sys.executable, "-c", BROKEN, "recipe", status=1)
    assert output.strip() == (
        "error: KeyError: 'deep inside' (unexpected; where it arose: .tenfold/last-error.txt, or --debug)"
    )
    assert "in broken" in checkout.read(".tenfold/last-error.txt")
    assert "in broken" in checkout.run(sys.executable, "-c", BROKEN, "--debug", "recipe", status=1)


def test_a_command_that_is_not_understood() -> None:
    done = tenfold("recipe", "--oops")
    assert done.returncode == 2
    assert "No such option" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_is_a_page_of_a_manual(tmp_path: Path) -> None:
    done = tenfold("--help", folder=tmp_path, environment={"COLUMNS": "100"})
    assert done.returncode == 0
    for part in ("Examples", "Files:", "Environment:", "Exit status:", "Stages (run by dvc repro)", "predict"):
        assert part in done.stdout
    loaded = tenfold("--version", environment={"PYTHONPROFILEIMPORTTIME": "1"}).stderr
    assert "pydantic" in loaded
    for heavy in ("mlflow", "torch", "numpy", "onnxruntime"):
        assert f" {heavy}\n" not in loaded


@pytest.mark.parametrize(
    ("words", "expected"),
    {
        "verbs": ("tenfold re", ["recipe", "repro"]),
        "recipes": ("tenfold recipe b", ["balanced", "best"]),
        "options": ("tenfold serve --po", ["--port"]),
    }.values(),
)
def test_the_shell_completes(words: str, expected: list[str]) -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "tenfold"],
        cwd=PROJECT,
        env=clean_environment()
        | {"_TENFOLD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == expected


def test_outside_a_project_the_error_says_so(tmp_path: Path) -> None:
    done = tenfold("train", folder=tmp_path)
    assert done.returncode == 1
    assert "no Tenfold project here" in done.stderr
