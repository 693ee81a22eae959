"""Which code made a run: also the files that git does not know yet."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tenfold.tracking import provenance


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A committed, clean tree."""
    (tmp_path / "params.yaml").write_text("seed: 1\n", encoding="utf-8")
    (tmp_path / ".gitignore").write_text("*.log\n", encoding="utf-8")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path)]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], check=True)
    return tmp_path


def dirty(tree: Path) -> bool:
    return provenance.source_tags(tree)[provenance.DIRTY] == "true"


def test_a_clean_tree_and_what_does_not_count(tree: Path) -> None:
    (tree / "run.log").write_text("x", encoding="utf-8")  # ignored
    (tree / "reports").mkdir()
    (tree / "reports/new.csv").write_text("x", encoding="utf-8")  # a product
    assert not dirty(tree)
    assert provenance.changes(tree) == ""


def test_new_files_make_dirty_and_are_in_a_diff_that_git_can_apply(tree: Path) -> None:
    (tree / "src").mkdir()
    (tree / "src/größe.py").write_text("x = 1\ny = '\u2028'", encoding="utf-8")
    assert dirty(tree)
    (tree / "params.yaml").write_text("seed: 2\n", encoding="utf-8")
    text = provenance.changes(tree)
    assert text.startswith("M params.yaml")
    (tree / "src/größe.py").unlink()
    subprocess.run(["git", "checkout", "-q", "."], cwd=tree, check=True)
    patch = text[text.index("diff --git") :]
    subprocess.run(["git", "apply", "-"], cwd=tree, input=patch.encode(), check=True)
    assert (tree / "params.yaml").read_text(encoding="utf-8") == "seed: 2\n"
    assert (tree / "src/größe.py").read_text(encoding="utf-8") == "x = 1\ny = '\u2028'\n"


def test_only_the_name_of_what_is_no_text(tree: Path) -> None:
    (tree / "model.bin").write_bytes(b"weights\0")
    (tree / "empty.py").touch()
    os.mkfifo(tree / "pipe")
    (tree / "link").symlink_to("pipe")
    (tree / "gone").symlink_to("nowhere")
    (tree / "locked").write_text("x", encoding="utf-8")
    (tree / "locked").chmod(0)
    subprocess.run(["git", "init", "-q", "inner"], cwd=tree, check=True)
    (tree / "inner/file").touch()
    text = provenance.changes(tree)
    for name in ("model.bin", "link", "gone", "inner/"):
        assert f"Binary files /dev/null and b/{name} differ" in text
    assert "b/empty.py\nnew file" in text
    assert "weights" not in text


def test_a_long_diff_is_cut_and_large_files_are_not_read(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "LONGEST_DIFF", 1000)
    with (tree / "huge.txt").open("w", encoding="utf-8") as file:
        file.write("line\n" * 1000)
    (tree / "later.txt").write_text("x", encoding="utf-8")
    text = provenance.changes(tree)
    assert text.endswith("\n… (cut at 1,000 characters)\n")
    assert len(text) < 1100
