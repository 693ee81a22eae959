"""README.md and the pages in docs/: what they name exists, and their commands run as written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from ruamel.yaml import YAML

from tenfold import recipes
from tenfold.params import describe
from tenfold.reproduce import check_overrides, flat_names, parse_overrides
from tests.checkout import PROJECT, Pipeline, clean_environment
from tests.servers import free_port, running

README = (PROJECT / "README.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"(<!-- not run: .+? -->\n\n)?^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
FOUND = [found for page in PAGES for found in SHELL.findall(page.read_text(encoding="utf-8"))]
BLOCKS = [content.strip() for reason, content in FOUND if not reason]
UNRUN = [content.strip() for reason, content in FOUND if reason]
"""The reason stands above each."""

NOT_RUN = {
    "git clone <address of this repository> tenfold && cd tenfold": "the fixture `pipeline` stands for it",
    "make repro": "installs 6 GB; the pipeline itself is run by the fixture",
    "source .venv/bin/activate": "the tests run in the environment that is already there",
    "make test": "would run this test in itself",
    "make lint": "`make test` calls it before the tests",
    "dvc repro --force": "run by tests/test_pipeline.py, with the comparison after it",
    "git diff --exit-code dvc.lock reports/metrics.json": "belongs to the line above; the fixture has other data",
    "mlflow run . -P learning_rate=0.003 -P max_epochs=1 --experiment-name foo": "installs 6 GB",
    "tenfold tricks": "takes half an hour; run by tests/measure/test_tricks.py on fewer trainings",
}
"""Lines of blocks that are not run, each with the reason."""
PARSED = ("dvc exp run ", "mlflow run ")
"""Lines of these are run, in this or a shorter form, by tests/test_pipeline.py; here they are parsed."""
SERVERS = ("make ui", "make serve", "mlflow models serve ")


def lines() -> list[str]:
    return [line for block in BLOCKS for line in block.splitlines()]


def code() -> str:
    """All code of the README, and nothing else: spans, and blocks of commands."""
    return "\n".join([*re.findall(r"`([^`\n]+)`", FENCED.sub("", README)), *BLOCKS])


def test_the_accuracy_is_the_committed_one() -> None:
    accuracy = json.loads((PROJECT / "reports/metrics.json").read_text(encoding="utf-8"))["test"]["acc"]
    found = re.search(r"reads ([\d.]+) % of the ([\d,]+) MNIST test images", README)
    assert found
    assert float(found[1]) == pytest.approx(100 * accuracy)


def test_paths_exist(pipeline: Pipeline) -> None:
    """Files and folders that README names, made by the pipeline or not; also those of the layout."""
    layout = next(content for language, content in FENCED.findall(README) if language == "text")
    named, folder = set[str](), ""
    for line in layout.splitlines():
        name = line.split()[0]
        named.add(folder + name if line.startswith(" ") else name)
        if not line.startswith(" "):
            folder = name if name.endswith("/") else ""
    drawing = next(content for language, content in FENCED.findall(README) if language == "mermaid")
    drawn = re.findall(r"\|([\w./]+)\|", drawing)
    text = code().replace("$PWD/", "")
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    ends = r"(?:\.(?:yaml|lock|toml|py|json|db|md|onnx|ckpt|npy|csv)|/)"
    words = re.findall(rf"(?<![\w./<-])((?:[\w.-]+/)*[\w.-]*{ends})(?![\w/])", text)
    folders = re.findall(r"(?<![\w./<-])((?:src|data|reports|models|tests)/[\w./-]+)", text)
    named |= {*drawn, *links, *words, *folders}
    named = {
        name
        for name in named
        if not name.startswith((".venv", "..", "tmp/", "photos/", ".tenfold", "reports/tricks"))
        and name not in {".", "/"}
    }
    assert {"params.yaml", "src/tenfold/stages/", "reports/metrics.json", "data/split/test/images.npy"} <= named
    assert [name for name in sorted(named) if not (pipeline.checkout.root / name).exists()] == []


def test_make_targets_and_verbs_exist() -> None:
    from tenfold.__main__ import app

    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", code(), re.MULTILINE))
    assert named >= {"repro", "ui", "serve", "test", "lint"}
    assert named <= targets
    verbs = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    assert set(re.findall(r"(?:^|`)tenfold ([a-z]+)", code(), re.MULTILINE)) <= verbs
    stages = list(YAML(typ="safe", pure=True).load(PROJECT / "dvc.yaml")["stages"])
    assert re.findall(r"(\w+)\[\"", README) == stages
    assert set(re.findall(r"dvc repro ([a-z]+)", code())) <= set(stages)


def test_what_is_not_run_is_in_the_readme() -> None:
    assert set(NOT_RUN) <= set(lines())


@pytest.mark.parametrize("line", [line for line in lines() if line.startswith(PARSED)])
def test_commands_of_experiments_are_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the parsers of DVC and MLflow, and their settings by the schema."""
    from dvc.cli import parse_args
    from mlflow.cli import cli

    monkeypatch.chdir(PROJECT)
    line = re.sub(r"\$\(tenfold recipe (\w+) --overrides\)", lambda found: recipes.overrides(found[1]), line)
    program, *arguments = shlex.split(line)
    if program == "dvc":
        given = dict(pair.split("=", 1) for pair in parse_args(arguments).set_param)
        assert set(given) <= set(describe())
    else:
        parsed = cli.commands["run"].make_context("run", arguments[1:]).params
        given = parse_overrides([f"--{pair}" for pair in parsed["param_list"]])
        assert set(given) <= set(flat_names().values())
    check_overrides(given)


def test_experiments_are_run_by_another_test() -> None:
    other = (PROJECT / "tests/test_pipeline.py").read_text(encoding="utf-8")
    assert next(line for line in lines() if line.startswith("mlflow run . --env-manager local")) in other
    for word in ('"--temp"', '"--queue"', '"--run-all"', '"dvc", "repro", "--force"'):
        assert word in other


def known_to_dvc(arguments: list[str]) -> bool:
    from dvc.cli import parse_args

    parsed = parse_args(arguments)
    given = dict(pair.split("=", 1) for pair in getattr(parsed, "set_param", None) or [])
    return set(given) <= set(describe())


@pytest.mark.parametrize("block", UNRUN)
def test_commands_that_are_not_run_are_known(block: str) -> None:
    """Their programs are there, DVC and MLflow know their arguments, and verbs and settings exist."""
    from mlflow.cli import cli

    from tenfold.__main__ import app

    verbs = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    for part in re.split(r"\n|; (?:do )?", block):
        program, *arguments = shlex.split(part, comments=True)
        if program in {"for", "done", "export"}:
            continue
        assert shutil.which(program), program
        if program == "dvc":
            assert known_to_dvc(arguments)
        elif program == "mlflow":
            assert cli.commands[arguments[0]].make_context(arguments[0], arguments[1:])
        elif program == "torchrun":
            assert arguments[arguments.index("-m") + 1] == "tenfold"
            assert arguments[-1] in verbs


@pytest.fixture(scope="module")
def pictures(pipeline: Pipeline) -> Iterator[None]:
    """What the pages call photo.jpg and my-pictures."""
    root = pipeline.checkout.root
    with (root / ".git/info/exclude").open("a") as ignored:
        ignored.write("photo.jpg\nmy-pictures/\nseen.png\nimage/\n")
    (root / "my-pictures").mkdir()
    picture = Image.fromarray(255 - np.load(root / "data/split/test/images.npy")[0, 0]).resize((280, 280))
    for place in ("photo.jpg", "my-pictures/one.png"):
        picture.save(root / place)
    yield
    shutil.rmtree(root / "my-pictures")
    (root / "photo.jpg").unlink()


def as_here(text: str, ports: dict[str, str]) -> str:
    """Commands for the fixture's data, and for ports that are free."""
    for port, free in ports.items():
        text = text.replace(port, free)
    return text.replace("tenfold-mnist", "tenfold-digits")


@pytest.mark.timeout(600)
def test_all_other_blocks_run_as_written(pipeline: Pipeline, pictures: None) -> None:
    checkout = pipeline.checkout
    before = checkout.run("git", "status", "--porcelain")
    elsewhere = (*PARSED, *SERVERS)
    done = []
    for block in BLOCKS:
        kept = [line for line in block.splitlines() if line not in NOT_RUN and not line.startswith(elsewhere)]
        if kept and "/invocations" not in block:  # asking needs the server of another test
            checkout.run("bash", "-e", "-c", as_here("\n".join(kept), {}))
            done += kept
    assert {"dvc metrics show", "dvc metrics diff", "dvc plots show"} <= set(done)
    assert any(line.startswith("dvc exp show ") for line in done)
    assert checkout.run("git", "status", "--porcelain") == before


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("target", "there"), [("ui", "<title>MLflow</title>"), ("serve", "<canvas")])
def test_the_pages_open(pipeline: Pipeline, tmp_path: Path, target: str, there: str) -> None:
    """`make ui` and `make serve`, with the environment that is there in place of `.venv`."""
    checkout, port = pipeline.checkout, free_port()
    assert any(line.startswith(f"make {target}") for line in lines())
    installed = checkout.root / ".venv" / ".installed"
    installed.parent.mkdir()
    address, environment = f"http://127.0.0.1:{port}/", clean_environment() | {"PORT": str(port)}
    try:
        installed.touch()
        with running(["make", target], address, checkout.root, environment, tmp_path / "log"):
            assert there in urllib.request.urlopen(address, timeout=30).read().decode()
    finally:
        installed.unlink(missing_ok=True)
        installed.parent.rmdir()


@pytest.mark.timeout(300)
def test_the_champion_is_served_and_asked(pipeline: Pipeline, pictures: None, tmp_path: Path) -> None:
    checkout, port = pipeline.checkout, free_port()
    ports = {"5001": str(port)}
    command = as_here(next(line for line in lines() if line.startswith("mlflow models serve ")), ports)
    requests = dict.fromkeys(block for block in BLOCKS if "/invocations" in block)
    askings = [as_here(block, ports).replace("/tmp/", f"{tmp_path}/") for block in requests]
    address = f"http://127.0.0.1:{port}/ping"
    with running(["bash", "-c", command], address, checkout.root, clean_environment(), tmp_path / "log"):
        answer, *others = [json.loads(checkout.run("bash", "-e", "-c", asking)) for asking in askings]
        refused = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations", b'{"inputs": [[[0.5]]]}', {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(refused, timeout=30)
    example = json.loads(next(content for language, content in FENCED.findall(README) if language == "json"))
    assert [len(other["predictions"]) for other in others] == [1, 256]
    assert len(answer["predictions"]) == 7
    assert list(answer["predictions"][0]) == list(example["predictions"][0])
