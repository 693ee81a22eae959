from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.stages import download

CHECKOUT = Path(__file__).parents[2]
MNIST = CHECKOUT.parent / "shared/data/mnist"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """The shipped settings, in an empty project as working directory."""
    for name in ("DVC_ROOT", "TENFOLD_DATA_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return of(Params.load(CHECKOUT / "params.yaml"), "mnist")


def of(settings: Params, dataset: str) -> Params:
    return settings.model_copy(update={"data": settings.data.model_copy(update={"dataset": dataset})})


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST's files are not beside the checkout")
def test_mnist(settings: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", str(MNIST))
    download.run(settings)
    assert tree(Path("data")) == [f"raw/{path.stem}" for path in sorted(MNIST.iterdir())]


@pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST's files are not beside the checkout")
def test_good_files_are_kept_and_damaged_ones_had_again(
    settings: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", str(MNIST))
    download.run(settings)
    good = {name: Path("data", name).read_bytes() for name in tree(Path("data"))}
    damaged = "t10k-labels-idx1-ubyte"
    Path("data/raw", damaged).write_bytes(bytes(10_008))
    Path("data/raw/old").touch()
    capsys.readouterr()
    download.run(settings)
    assert good == {name: Path("data", name).read_bytes() for name in tree(Path("data"))}
    printed = capsys.readouterr().out
    assert printed.count("from data/raw") == 3
    assert f"data/raw/{damaged}: is another file: md5 " in printed
    assert f"{damaged}.gz, 4,542 bytes, from {MNIST}" in printed


def test_digits_replace_what_was_there_and_are_the_same_bytes_again(settings: Params) -> None:
    Path("data/raw").mkdir(parents=True)
    Path("data/raw/old").touch()
    settings = of(settings, "digits")
    download.run(settings)
    first = {name: Path("data", name).read_bytes() for name in tree(Path("data"))}
    assert sorted(first) == ["raw/digits-images-idx3-ubyte", "raw/digits-labels-idx1-ubyte"]
    download.run(settings)
    assert first == {name: Path("data", name).read_bytes() for name in tree(Path("data"))}


def test_a_failure_leaves_nothing_half_written(settings: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", "ftp://example.org")
    with pytest.raises(TenfoldError, match="TENFOLD_DATA_MIRROR"):
        download.run(settings)
    assert list(Path("data").iterdir()) == []


def test_the_stage_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tenfold.stages import download, split; "
        "print({'torch', 'sklearn', 'mlflow', 'matplotlib', 'requests'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
