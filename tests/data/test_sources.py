from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from tenfold import params
from tenfold.data import idx, sources
from tenfold.errors import TenfoldError

NAMES = [file.name for file in sources.DATASETS["mnist"].files]
LABELS = "t10k-labels-idx1-ubyte.gz"


@pytest.fixture(autouse=True)
def _here(project: Path) -> None:
    """Every test runs in an empty project."""


@pytest.fixture
def target(project: Path) -> Path:
    folder = project / "target"
    folder.mkdir()
    return folder


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, dead_url: str) -> str:
    """The built-in mirrors at an address where nobody listens."""
    monkeypatch.setitem(sources.DATASETS, "mnist", replace(sources.DATASETS["mnist"], mirrors=(dead_url,)))
    return dead_url


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_table_holds_what_the_settings_allow() -> None:
    assert set(sources.DATASETS) == set(get_args(params.Data.model_fields["dataset"].annotation))


def test_the_shared_folder_is_used_without_any_network(
    project: Path, target: Path, mnist_files: Path, no_network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(mnist_files, project.parent / "shared/data/mnist")
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", no_network)
    sources.obtain("mnist", target)
    assert names(target) == set(NAMES)
    for name in NAMES:
        assert (target / name).read_bytes() == (mnist_files / name).read_bytes()


def test_a_temporary_experiment_uses_the_folder_beside_the_main_checkout(
    tmp_path: Path, target: Path, mnist_files: Path, no_network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere/main").mkdir(parents=True)
    shutil.copytree(mnist_files, tmp_path / "elsewhere/shared/data/mnist")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "elsewhere/main"))
    sources.obtain("mnist", target)
    assert names(target) == set(NAMES)


@pytest.mark.parametrize("place", [".", "mnist"])
def test_a_mirror_over_http(
    *,
    place: str,
    tmp_path: Path,
    target: Path,
    mnist_files: Path,
    no_network: str,
    serve: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(mnist_files, tmp_path / "served" / place)
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", serve(tmp_path / "served"))
    sources.obtain("mnist", target)
    assert names(target) == set(NAMES)


def test_a_mirror_in_a_folder(
    target: Path, mnist_files: Path, no_network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", str(mnist_files))
    sources.obtain("mnist", target)
    assert names(target) == set(NAMES)


def test_a_verified_file_in_data_raw_is_kept(project: Path, target: Path, mnist_files: Path, no_network: str) -> None:
    shutil.copytree(mnist_files, project / "data/raw")
    sources.obtain("mnist", target)
    assert names(target) == set(NAMES)


def test_a_damaged_local_file_is_reported_and_had_from_the_next_source(
    *,
    project: Path,
    target: Path,
    mnist_files: Path,
    serve: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shared = project.parent / "shared/data/mnist"
    shutil.copytree(mnist_files, shared)
    (shared / LABELS).chmod(0o644)
    (shared / LABELS).write_bytes((mnist_files / LABELS).read_bytes()[:-1])
    url = serve(mnist_files)
    monkeypatch.setitem(sources.DATASETS, "mnist", replace(sources.DATASETS["mnist"], mirrors=(url,)))
    sources.obtain("mnist", target)
    assert (target / LABELS).read_bytes() == (mnist_files / LABELS).read_bytes()
    printed = capsys.readouterr().out
    assert f"{shared / LABELS}: is another file: md5 " in printed
    assert "expected md5 ec29112dd5afa0611ce80d1b7f02629c" in printed
    assert f"{LABELS}, 4,542 bytes, from {url}" in printed


class CutShort(SimpleHTTPRequestHandler):
    """Promises a byte more than it sends."""

    def send_header(self, keyword: str, value: str) -> None:
        super().send_header(keyword, str(int(value) + 1) if keyword == "Content-Length" else value)


def test_a_body_cut_short_is_no_success(
    *,
    target: Path,
    mnist_files: Path,
    no_network: str,
    serve: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", serve(mnist_files, CutShort))
    with pytest.raises(TenfoldError, match=rf"{LABELS}: broke off .*1 more expected"):
        sources.obtain("mnist", target)
    assert names(target) == set()


def test_when_nothing_can_be_reached_the_error_lists_what_was_tried_and_the_way_out(
    *,
    tmp_path: Path,
    project: Path,
    target: Path,
    no_network: str,
    serve: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / NAMES[0]).write_text("<html>log in</html>")
    url = serve(tmp_path / "served").replace("http://", "http://me:secret@")
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", url)
    with pytest.raises(TenfoldError) as error:
        sources.obtain("mnist", target)
    message, shown = str(error.value), url.replace("me:secret@", "")
    assert f"{project.parent / 'shared/data/mnist'}: no such folder" in message
    assert f"{shown}/{NAMES[0]}: is another file: md5 " in message
    assert f"{shown}/{NAMES[1]}: answered 404" in message
    assert f"{no_network}: cannot be reached" in message
    assert "secret" not in message
    assert "data.dataset: digits" in message
    assert "TENFOLD_DATA_MIRROR" in message
    assert names(target) == set()


def test_the_unpacked_content_is_checked_too(
    target: Path, mnist_files: Path, no_network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = sources.DATASETS["mnist"]
    images, labels = dataset.train
    monkeypatch.setitem(
        sources.DATASETS, "mnist", replace(dataset, train=(images, replace(labels, md5_unpacked="0" * 32)))
    )
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", str(mnist_files))
    with pytest.raises(TenfoldError, match=r"train-labels-idx1-ubyte.gz: unpacked, is another file: md5 a25bea"):
        sources.obtain("mnist", target)


def test_a_mirror_of_an_unknown_kind_is_refused(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", "ftp://example.org/mnist")
    with pytest.raises(TenfoldError, match="TENFOLD_DATA_MIRROR: expected a URL with http://"):
        sources.obtain("mnist", target)


def test_digits_are_the_ones_of_scikit_learn(target: Path, no_network: str) -> None:
    from sklearn.datasets import load_digits

    sources.obtain("digits", target)
    pool, official = sources.read("digits", target)
    small, labels = load_digits(return_X_y=True)
    assert official is None
    assert pool.images.shape == (1797, 1, 28, 28)
    assert pool.images.dtype == np.uint8
    assert (pool.images.min(), pool.images.max()) == (0, 255)
    np.testing.assert_array_equal(pool.labels, labels)
    # The mean over each 7×7 block is near the mean of the 2×2 pixels that it was made of.
    blocks = pool.images.reshape(-1, 4, 7, 4, 7).mean((2, 4))
    expected = small.reshape(-1, 4, 2, 4, 2).mean((2, 4)) * 255 / 16
    assert np.corrcoef(blocks.ravel(), expected.ravel())[0, 1] > 0.99


def test_other_digits_than_expected_are_refused(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_other(folder: Path) -> None:
        for file in sources.DATASETS["digits"].files:
            idx.write(folder / file.name, np.zeros(3, np.uint8))

    monkeypatch.setitem(sources.DATASETS, "digits", replace(sources.DATASETS["digits"], make=make_other))
    with pytest.raises(TenfoldError, match="digits-images-idx3-ubyte as made here is another file: md5"):
        sources.obtain("digits", target)


def test_mnist_is_read_whole(mnist_files: Path) -> None:
    pool, official = sources.read("mnist", mnist_files)
    assert official is not None
    assert (pool.images.shape, official.images.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert pool.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert official.labels[:5].tolist() == [7, 2, 1, 0, 4]


def test_train_and_test_of_different_size_are_refused(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [sources.File(name, "") for name in ("images", "labels", "test-images", "test-labels")]
    for file, shape in zip(files, [(2, 4, 4), (2,), (2, 4, 5), (2,)], strict=True):
        idx.write(target / file.name, np.zeros(shape, np.uint8))
    odd = sources.Dataset(("a",), train=(files[0], files[1]), test=(files[2], files[3]))
    monkeypatch.setitem(sources.DATASETS, "odd", odd)
    with pytest.raises(TenfoldError, match=r"odd: expected test images of shape \(1, 4, 4\).* found \(1, 4, 5\)"):
        sources.read("odd", target)


def test_reading_what_is_not_there_says_how_to_get_it(target: Path) -> None:
    with pytest.raises(TenfoldError, match=r"ubyte.gz: cannot be read .* tenfold download"):
        sources.read("mnist", target)
