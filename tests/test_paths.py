from pathlib import Path

import pytest

from tenfold import paths
from tenfold.errors import TenfoldError


def test_root_is_found_from_below(tmp_path: Path) -> None:
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).touch()
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert paths.find_root(below) == tmp_path.resolve()


def test_no_project_here(tmp_path: Path) -> None:
    with pytest.raises(TenfoldError, match="no Tenfold project here"):
        paths.find_root(tmp_path)


def test_home_is_the_main_checkout_inside_a_temporary_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert paths.home() == tmp_path.resolve()
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "main"))
    assert paths.home() == (tmp_path / "main").resolve()


def test_writing_replaces_a_file_and_a_folder(tmp_path: Path) -> None:
    file, folder = tmp_path / "new" / "file", tmp_path / "folder"
    folder.mkdir()
    (folder / "old").touch()
    with paths.writing(file) as temporary:
        temporary.write_text("a")
    with paths.writing(folder) as temporary:
        temporary.mkdir()
        (temporary / "new").touch()
    assert file.read_text() == "a"
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "new"]


def test_writing_leaves_nothing_half_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    with pytest.raises(RuntimeError, match="power cut"), paths.writing(file) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise RuntimeError("power cut")
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left, others = tmp_path / ".file.99999999.tmp", tmp_path / ".file.1.tmp"
    left.mkdir()
    others.touch()  # process 1 is always there
    with paths.writing(tmp_path / "file") as temporary:
        temporary.write_text("a")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".file.1.tmp", "file"]
