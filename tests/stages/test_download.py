from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tenfold.errors import TenfoldError
from tenfold.params import Data, Params
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
    return Params.load(CHECKOUT / "params.yaml").model_copy(update={"data": Data(dataset="mnist")})


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST's files are not beside the checkout")
def test_mnist(settings: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", str(MNIST))
    download.run(settings)
    assert tree(Path("data")) == [f"raw/{path.name}" for path in sorted(MNIST.iterdir())]


def test_digits_replace_what_was_there_and_are_the_same_bytes_again(settings: Params) -> None:
    Path("data/raw").mkdir(parents=True)
    Path("data/raw/old").touch()
    settings = settings.model_copy(update={"data": Data(dataset="digits")})
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
