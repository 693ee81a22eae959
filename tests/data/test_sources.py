from __future__ import annotations

import functools
import gzip
import hashlib
import io
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tenfold.data import fetch, idx, sources
from tenfold.datasets import DATASETS, Dataset, File
from tenfold.errors import TenfoldError
from tests.data.conftest import Handler, Mirror, half, nothing, status, web_page, well, wrong_file

NAMES = [file.kept for file in DATASETS["mnist"].files]
LABELS = "t10k-labels-idx1-ubyte"
FASHION = Path("/usr/share/datasets/fashion-mnist")

pytestmark = pytest.mark.usefixtures("impatient")


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
    for name, dataset in DATASETS.items():
        if dataset.mirrors:
            monkeypatch.setitem(DATASETS, name, replace(dataset, mirrors=(dead_url,)))
    return dead_url


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def idx_bytes(*shape: int, classes: int = 2, first: int = 0) -> bytes:
    """An IDX file: images that all differ, or labels."""
    values = np.arange(np.prod(shape)).reshape(shape)
    path = Path("idx")
    idx.write(path, (values % (classes if len(shape) == 1 else 251) + first).astype(np.uint8))
    content = path.read_bytes()
    path.unlink()
    return content


SHAPES = [(6, 4, 4), (6,), (4, 4, 4), (4,)]


@pytest.fixture
def like_kmnist(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A small KMNIST, whose files, as the real ones', have no checksum of what is in them."""
    dataset = DATASETS["kmnist"]
    packed = {file.name: gzip.compress(idx_bytes(*shape)) for file, shape in zip(dataset.files, SHAPES, strict=True)}
    files = [replace(file, md5=md5(packed[file.name])) for file in dataset.files]
    small = replace(dataset, train=(files[0], files[1]), test=(files[2], files[3]))
    monkeypatch.setitem(DATASETS, "kmnist", small)
    return packed


def emnist_archive(*splits: str, first: int = 0) -> bytes:
    """A small archive of EMNIST, its files in a folder, as in the real one."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("gzip/emnist-letters-mapping.txt", "1 65 97\n")
        for split in splits:
            for file, shape in zip(DATASETS[f"emnist-{split}"].files, SHAPES, strict=True):
                zipped.writestr(f"gzip/{file.name}", gzip.compress(idx_bytes(*shape, classes=3, first=first)))
    return content.getvalue()


def have_archive(monkeypatch: pytest.MonkeyPatch, content: bytes, url: str, *splits: str) -> None:
    """Have the table name this archive, at this mirror."""
    for split in splits:
        dataset = replace(DATASETS[f"emnist-{split}"], mirrors=(url,), archive=File("gzip.zip", md5(content)))
        monkeypatch.setitem(DATASETS, f"emnist-{split}", dataset)


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


class ByName:
    """A behaviour for each file name, `well` for the others."""

    def __init__(self, files: dict[str, bytes], **behaviours: Callable[[Handler], None]) -> None:
        self.files, self.behaviours = files, behaviours

    def __call__(self, to: Handler) -> None:
        name = to.path.rpartition("/")[2]
        to.server.content = self.files[name]
        self.behaviours.get(name.partition("-")[0], well)(to)


# Where files come from


def test_the_shared_folder_is_used_without_any_network(
    project: Path, target: Path, mnist_files: Path, no_network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(mnist_files, project.parent / "shared/data/mnist")
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", no_network)
    sources.obtain("mnist", target)
    assert names(target) == sorted(NAMES)
    for name in NAMES:
        assert (target / name).read_bytes() == gzip.decompress((mnist_files / f"{name}.gz").read_bytes())


def test_a_temporary_experiment_uses_the_folder_beside_the_main_checkout(
    tmp_path: Path, target: Path, mnist_files: Path, no_network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere/main").mkdir(parents=True)
    shutil.copytree(mnist_files, tmp_path / "elsewhere/shared/data/mnist")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "elsewhere/main"))
    sources.obtain("mnist", target)
    assert names(target) == sorted(NAMES)


@pytest.mark.parametrize("place", [".", "kmnist"])
def test_a_mirror_over_http(
    *,
    place: str,
    tmp_path: Path,
    target: Path,
    like_kmnist: dict[str, bytes],
    no_network: str,
    serve: Callable[[Path], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(tmp_path / "served" / place, like_kmnist)
    url = serve(tmp_path / "served").replace("//", "//me:secret@")
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", url)
    sources.obtain("kmnist", target)
    assert names(target) == sorted(NAMES)
    printed = capsys.readouterr().out
    assert f"kmnist: {LABELS}.gz, " in printed
    assert "secret" not in printed


@pytest.mark.parametrize("place", [".", "kmnist"])
def test_a_mirror_in_a_folder(
    *,
    place: str,
    project: Path,
    target: Path,
    like_kmnist: dict[str, bytes],
    no_network: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(project / "mirror" / place, like_kmnist)
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", "mirror")
    sources.obtain("kmnist", target)
    assert names(target) == sorted(NAMES)


def test_a_mirror_of_an_unknown_kind_is_refused(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", "ftp://me:secret@example.org/mnist")
    with pytest.raises(TenfoldError, match=r"expected a URL with http:.* found 'ftp://example.org"):
        sources.obtain("mnist", target)


def test_mirrors_are_tried_in_turn_each_for_what_the_ones_before_did_not_give(
    *,
    target: Path,
    like_kmnist: dict[str, bytes],
    dead_url: str,
    mirror: Callable[..., Mirror],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    by_name = functools.partial(ByName, like_kmnist)
    mirrors = [
        mirror(b"", web_page),
        mirror(b"", status(503)),
        mirror(b"", nothing),
        mirror(b"", by_name(train=status(403))),
        mirror(b"", by_name(train=half)),
        mirror(b"", by_name(train=wrong_file)),
        mirror(b"", by_name()),
    ]
    urls = (dead_url, *(each.url for each in mirrors), "http://not.asked.invalid/")
    monkeypatch.setitem(DATASETS, "kmnist", replace(DATASETS["kmnist"], mirrors=urls))
    sources.obtain("kmnist", target)
    for name, packed in like_kmnist.items():
        assert (target / name.removesuffix(".gz")).read_bytes() == gzip.decompress(packed)
    assert [len(each.requests) for each in mirrors] == [4, 3, 3, 4, 3, 2, 2]
    first, printed = next(iter(like_kmnist)), capsys.readouterr().out
    for place, reason in (
        (dead_url, "cannot be reached (Failed to establish a new connection: [Errno 111] Connection refused)"),
        (f"{mirrors[0].url}/{first}", "is a web page"),
        (mirrors[1].url, "answered 503 Service Unavailable; tried 3 times"),
        (mirrors[2].url, "sent nothing for 1 s; tried 3 times"),
        (f"{mirrors[3].url}/{first}", "answered 403 Forbidden"),
        (mirrors[4].url, "broke off ("),
        (f"{mirrors[5].url}/{first}", "is another file: md5 2bda2998d9b0ee197da142a0447f6725 (5 bytes), expected md5 "),
    ):
        assert f"kmnist: {place}: {reason}" in printed
    assert f"kmnist: {first}, {len(like_kmnist[first]):,} bytes, from {mirrors[6].url}" in printed


def test_when_nothing_can_be_had_the_error_lists_what_was_tried_and_the_way_out(
    *,
    tmp_path: Path,
    project: Path,
    target: Path,
    no_network: str,
    serve: Callable[[Path], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(tmp_path / "served", {f"{NAMES[0]}.gz": b"<html>log in</html>", f"{NAMES[2]}.gz": b""})
    url = serve(tmp_path / "served").replace("http://", "http://me:secret@")
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", url)
    with pytest.raises(TenfoldError) as error:
        sources.obtain("mnist", target)
    message, shown = str(error.value), url.replace("me:secret@", "")
    assert f"{project.parent / 'shared/data/mnist'}: no such folder" in message
    assert f"{shown}/{NAMES[0]}.gz: is a web page" in message
    assert f"{shown}/{NAMES[1]}.gz: answered 404" in message
    assert f"{shown}/{NAMES[2]}.gz: is another file: md5 {md5(b'')} (0 bytes), expected md5 9fb629c41" in message
    assert f"{no_network}: cannot be reached" in message
    assert "secret" not in message
    assert "data.dataset: digits" in message
    assert "TENFOLD_DATA_MIRROR" in message


# What lies here already


def test_verified_files_need_no_network(
    project: Path, target: Path, mnist_files: Path, no_network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = project / "data/raw"
    put(raw, {name: gzip.decompress((mnist_files / f"{name}.gz").read_bytes()) for name in NAMES})
    sources.obtain("mnist", target)
    assert names(target) == sorted(NAMES)
    assert capsys.readouterr().out.count("from data/raw") == 4


def test_a_damaged_file_is_reported_and_had_from_the_next_source(
    *,
    project: Path,
    target: Path,
    mnist_files: Path,
    serve: Callable[[Path], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = gzip.decompress((mnist_files / f"{LABELS}.gz").read_bytes())
    put(project / "data/raw", {LABELS: good[:-1] + b"?"})
    shared = put(project.parent / "shared/data/mnist", {f"{LABELS}.gz": b"damaged"})
    url = serve(mnist_files)
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], mirrors=(url,)))
    sources.obtain("mnist", target)
    assert (target / LABELS).read_bytes() == good
    printed = capsys.readouterr().out
    assert f"data/raw/{LABELS}: is another file: md5 " in printed
    assert f"{shared / LABELS}.gz: is another file: md5 " in printed
    assert "expected md5 ec29112dd5afa0611ce80d1b7f02629c, or 27ae3e4e09519cfbb04c329615203637 unpacked" in printed
    assert f"{LABELS}.gz, 4,542 bytes, from {url}" in printed


def test_what_was_downloaded_stays_and_is_verified_again(
    *,
    project: Path,
    target: Path,
    like_kmnist: dict[str, bytes],
    mirror: Callable[..., Mirror],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = mirror(b"", ByName(like_kmnist))
    monkeypatch.setitem(DATASETS, "kmnist", replace(DATASETS["kmnist"], mirrors=(server.url,)))
    sources.obtain("kmnist", target)
    sources.obtain("kmnist", target)
    assert len(server.requests) == 4
    (project / f".tenfold/downloads/kmnist/{LABELS}.gz").write_bytes(b"damaged")
    sources.obtain("kmnist", target)
    assert len(server.requests) == 5
    assert (target / LABELS).read_bytes() == gzip.decompress(like_kmnist[f"{LABELS}.gz"])


def test_a_stage_that_is_interrupted_goes_on_where_it_was(
    *, target: Path, like_kmnist: dict[str, bytes], mirror: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    behaviours: dict[str, Callable[[Handler], None]] = {"t10k": half}
    server = mirror(b"", ByName(like_kmnist))
    server.script = [ByName(like_kmnist, **behaviours)]
    monkeypatch.setitem(DATASETS, "kmnist", replace(DATASETS["kmnist"], mirrors=(server.url,)))
    monkeypatch.setattr(fetch, "BACKOFF_S", ())
    with pytest.raises(TenfoldError, match=r"cannot get t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz"):
        sources.obtain("kmnist", target)
    server.script = [ByName(like_kmnist)]
    server.requests.clear()
    sources.obtain("kmnist", target)
    size = len(like_kmnist["t10k-images-idx3-ubyte.gz"])
    assert server.ranges == [f"bytes={size // 2}-", None]


# What is in them


def test_a_file_may_be_packed_otherwise_if_its_content_is_known(
    target: Path, mnist_files: Path, project: Path, no_network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = {name: gzip.decompress((mnist_files / f"{name}.gz").read_bytes()) for name in NAMES}
    mixed = {f"{name}.gz": gzip.compress(unpacked[name], 1) for name in NAMES[:3]} | {LABELS: unpacked[LABELS]}
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", str(put(project / "mirror", mixed)))
    sources.obtain("mnist", target)
    assert {name: (target / name).read_bytes() for name in NAMES} == unpacked


def test_the_unpacked_content_is_checked_too(
    target: Path, mnist_files: Path, no_network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = DATASETS["mnist"]
    images, labels = dataset.train
    odd = replace(dataset, train=(images, replace(labels, md5_unpacked="0" * 32)))
    monkeypatch.setitem(DATASETS, "mnist", odd)
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", str(mnist_files))
    with pytest.raises(TenfoldError, match=rf"train-labels-idx1-ubyte.gz: is another file: .*, or {'0' * 32} unpacked"):
        sources.obtain("mnist", target)


def test_a_file_that_unpacks_without_end_is_refused(
    project: Path, target: Path, no_network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MAX_BYTES", 10_000_000)
    bomb = put(project / "mirror", {f"{NAMES[0]}.gz": gzip.compress(bytes(20_000_000))})
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", str(bomb))
    with pytest.raises(TenfoldError, match=rf"{NAMES[0]}.gz: unpacks to more than 10,000,000 bytes"):
        sources.obtain("mnist", target)
    assert (target / NAMES[0]).stat().st_size < 12_000_000


def test_a_full_disk_is_no_fault_of_the_source(
    target: Path, like_kmnist: dict[str, bytes], mirror: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = mirror(b"", ByName(like_kmnist))
    monkeypatch.setitem(DATASETS, "kmnist", replace(DATASETS["kmnist"], mirrors=(server.url,)))
    (target / NAMES[0]).symlink_to("/dev/full")
    with pytest.raises(TenfoldError, match=r"target: cannot be written \(No space left on device\)"):
        sources.obtain("kmnist", target)


def test_mnist_is_read_whole(target: Path, mnist_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", str(mnist_files))
    sources.obtain("mnist", target)
    raw = sources.read("mnist", target)
    assert raw.test is not None
    assert raw.classes == tuple("0123456789")
    assert (raw.pool.images.shape, raw.test.images.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert raw.pool.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert raw.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert raw.skipped == {}


@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_fashion_mnist_as_debian_ships_it(target: Path, no_network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", str(FASHION))
    sources.obtain("fashion-mnist", target)
    raw = sources.read("fashion-mnist", target)
    assert raw.test is not None
    assert (raw.pool.images.shape, raw.test.images.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert np.bincount(raw.pool.labels).tolist() == [6000] * 10
    assert [raw.classes[label] for label in raw.test.labels[:4]] == ["Ankle boot", "Pullover", "Trouser", "Trouser"]


def test_digits_are_the_ones_of_scikit_learn(target: Path) -> None:
    from sklearn.datasets import load_digits

    sources.obtain("digits", target)
    pool = sources.read("digits", target).pool
    small, labels = load_digits(return_X_y=True)
    assert sources.read("digits", target).test is None
    assert pool.images.shape == (1797, 1, 28, 28)
    assert pool.images.dtype == np.uint8
    assert (pool.images.min(), pool.images.max()) == (0, 255)
    np.testing.assert_array_equal(pool.labels, labels)
    # The mean over each 7×7 block is near the mean of the 2×2 pixels that it was made of.
    blocks = pool.images.reshape(-1, 4, 7, 4, 7).mean((2, 4))
    expected = small.reshape(-1, 4, 2, 4, 2).mean((2, 4)) * 255 / 16
    assert np.corrcoef(blocks.ravel(), expected.ravel())[0, 1] > 0.99


def test_other_digits_than_expected_are_refused(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = DATASETS["digits"]
    other = replace(dataset, train=(replace(dataset.train[0], md5="0" * 32), dataset.train[1]))
    monkeypatch.setitem(DATASETS, "digits", other)
    with pytest.raises(TenfoldError, match="digits-images-idx3-ubyte as made here is another file: md5 aa2ebf83"):
        sources.obtain("digits", target)


# EMNIST


def test_one_archive_serves_all_splits_and_is_fetched_once(
    *, project: Path, target: Path, mirror: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = emnist_archive("letters", "balanced", first=1)
    server = mirror(content)
    have_archive(monkeypatch, content, server.url, "letters", "balanced")
    sources.obtain("emnist-letters", target)
    assert names(target) == sorted(file.kept for file in DATASETS["emnist-letters"].files)
    raw = sources.read("emnist-letters", target)
    assert raw.pool.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert raw.classes[2] == "c"
    image = raw.pool.images[0, 0]
    np.testing.assert_array_equal(image, np.arange(1, 17).reshape(4, 4).T)
    server.close()
    (project / "other").mkdir()
    sources.obtain("emnist-balanced", project / "other")
    assert sources.read("emnist-balanced", project / "other").pool.labels.tolist() == [1, 2, 3, 1, 2, 3]
    assert len(server.requests) == 1


@pytest.mark.parametrize("place", ["../shared/data/emnist", "../shared/data/emnist-letters", "mirror"])
def test_the_archive_may_lie_in_a_folder(
    place: str, project: Path, target: Path, dead_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = emnist_archive("letters", first=1)
    put(project / place, {"gzip.zip": content})
    have_archive(monkeypatch, content, dead_url, "letters")
    monkeypatch.setenv("TENFOLD_DATA_MIRROR", "mirror")
    sources.obtain("emnist-letters", target)
    assert len(names(target)) == 4


def test_a_label_out_of_range_names_the_true_range(
    target: Path, dead_url: str, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    content = emnist_archive("letters", first=0)
    have_archive(monkeypatch, content, dead_url, "letters")
    put(project.parent / "shared/data/emnist", {"gzip.zip": content})
    sources.obtain("emnist-letters", target)
    message = r"emnist-letters-train-labels-idx1-ubyte: expected labels 1…26, found 0 at position 0\. To get the files"
    with pytest.raises(TenfoldError, match=message):
        sources.read("emnist-letters", target)


def bad_member(content: bytes) -> bytes:
    """The archive with a bit flipped in the content of its last member."""
    last = zipfile.ZipFile(io.BytesIO(content)).infolist()[-1]
    place = last.header_offset + 30 + len(last.filename) + last.compress_size // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content, "does not hold emnist-letters-train-images-idx3-ubyte.gz"),
        (lambda content: b"not a zip", "cannot be unpacked (File is not a zip file)"),
        (lambda content: bad_member(emnist_archive("letters")), "cannot be unpacked ("),
    ],
    ids=["another archive", "no archive", "a flipped bit"],
)
def test_an_archive_that_cannot_be_used_is_named(
    *,
    change: Callable[[bytes], bytes],
    reason: str,
    project: Path,
    target: Path,
    dead_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = change(emnist_archive("balanced"))
    have_archive(monkeypatch, content, dead_url, "letters")
    shared = put(project.parent / "shared/data/emnist", {"gzip.zip": content})
    with pytest.raises(TenfoldError) as error:
        sources.obtain("emnist-letters", target)
    assert f"{shared / 'gzip.zip'}: {reason}" in str(error.value)


def test_an_archive_that_unpacks_without_end_is_refused(
    target: Path, mirror: Callable[..., Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as zipped:
        zipped.writestr("gzip/emnist-letters-train-images-idx3-ubyte.gz", gzip.compress(bytes(20_000_000)))
    server = mirror(content.getvalue())
    have_archive(monkeypatch, content.getvalue(), server.url, "letters")
    monkeypatch.setattr(fetch, "MAX_BYTES", 10_000_000)
    with pytest.raises(TenfoldError, match=r"/gzip.zip: unpacks to more than 10,000,000 bytes"):
        sources.obtain("emnist-letters", target)


def test_a_wrong_archive_is_told_by_its_checksum(
    project: Path, target: Path, dead_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_archive(monkeypatch, b"the right one", dead_url, "letters")
    put(project.parent / "shared/data/emnist", {"gzip.zip": b"the wrong one"})
    with pytest.raises(TenfoldError, match=r"gzip.zip: is another file: md5 .* \(13 bytes\), expected md5 "):
        sources.obtain("emnist-letters", target)


# Files that do not fit


def test_train_and_test_of_different_size_are_refused(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [File(name, None) for name in ("images", "labels", "test-images", "test-labels")]
    for file, shape in zip(files, [(2, 4, 4), (2,), (2, 4, 5), (2,)], strict=True):
        idx.write(target / file.name, np.zeros(shape, np.uint8))
    odd = Dataset(("a",), train=(files[0], files[1]), test=(files[2], files[3]))
    monkeypatch.setitem(DATASETS, "odd", odd)
    with pytest.raises(TenfoldError, match=r"odd: expected test images of shape \(1, 4, 4\).* found \(1, 4, 5\)"):
        sources.read("odd", target)


def test_reading_what_is_not_there_says_how_to_get_it(target: Path) -> None:
    with pytest.raises(TenfoldError, match=r"-ubyte: cannot be read .* tenfold download"):
        sources.read("mnist", target)
