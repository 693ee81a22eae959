"""The pages in docs/: the reference is what the schema says, quoted messages exist, links lead somewhere."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tenfold.params import describe
from tests.checkout import PROJECT

DOCS = PROJECT / "docs"
PAGES = [PROJECT / "README.md", *sorted(DOCS.rglob("*.md"))]


def test_the_reference_is_made_from_the_schema() -> None:
    page = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert page == runpy.run_path(str(DOCS / "reference.py"))["render"](), "write it anew: python docs/reference.py"
    assert re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE) == list(describe())


def strings() -> set[str]:
    """All texts in the source, with … for what is put into them."""
    found = set()
    for file in (PROJECT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.add("".join(map(str, parts)))
    return found


def test_the_messages_in_troubleshooting_exist() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(quoted) > 25
    texts = strings()
    assert [message for message in quoted if not any(message in text for text in texts)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, _, anchor in re.findall(r"\]\(((?!https?://)[^)#]*)(#?)([^)]*)\)", text):
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), f"{target} is not there"
        if anchor:
            heads = re.findall(r"^#+ (.*)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]
            assert anchor in slugs, f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_keys_are_keys(page: Path) -> None:
    """Whatever looks like a setting, in spans of code."""
    keys = set(describe())
    sections = set(YAML(typ="safe").load(PROJECT / "params.yaml"))
    for span in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
        if (found := re.match(r"([a-z_]+(?:\.[a-z_]+)+)(?:\.\*)?(?::|$)", span)) and found[1].split(".")[0] in sections:
            name = found[1]
            assert any(key == name or key.startswith(f"{name}.") for key in keys), name


def test_every_trick_is_explained() -> None:
    page = (DOCS / "tricks.md").read_text(encoding="utf-8")
    document = YAML(typ="safe").load(PROJECT / "tricks.yaml")
    named = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?:\.\*)?(?::|`)", page)
    for trick, settings in document["tricks"].items():
        for key in settings:
            assert any(key.startswith(name) for name in named) or key in {
                "against",
                "train.max_epochs",
                "model.network",
                "model.width",
            }, trick
