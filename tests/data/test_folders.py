from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from tenfold.data import folders
from tenfold.data.arrays import Raw
from tenfold.errors import TenfoldError
from tenfold.params import Data, Params

CHECKOUT = Path(__file__).parents[2]
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A function that makes a folder of images, of a value each: `make({"cat": [1, 2], "dog": [3]})`."""

    def make(classes: dict[str, list[int]], root: str = "images", size: tuple[int, int] = (12, 10)) -> Path:
        for name, values in classes.items():
            (tmp_path / root / name).mkdir(parents=True)
            for number, value in enumerate(values):
                Image.new("L", size, value).save(tmp_path / root / name / f"{number}.png")
        return tmp_path / "images"

    return make


def settings(folder: Path, **changes: object) -> Data:
    shipped = Params.load(CHECKOUT / "params.yaml").data
    return shipped.model_copy(update={"dataset": "folder", "folder": str(folder)} | changes)


def imported(folder: Path, target: Path, **changes: object) -> Raw:
    target.mkdir()
    folders.obtain(settings(folder, **changes), target)
    return folders.read(target)


def refusal(folder: Path, target: Path, **changes: object) -> str:
    with pytest.raises(TenfoldError) as error:
        imported(folder, target, **changes)
    return str(error.value)


TWO = {"cat": [10, 20, 30], "dog": [40, 50]}


def test_a_folder_per_class(make: Make, tmp_path: Path) -> None:
    raw = imported(make(TWO), tmp_path / "raw")
    assert raw.classes == ("cat", "dog")
    assert raw.pool.images.shape == (5, 1, 10, 10)
    assert isinstance(raw.pool.images, np.memmap)
    assert raw.pool.images[:, 0, 0, 0].tolist() == [10, 20, 30, 40, 50]
    assert raw.pool.labels.tolist() == [0, 0, 0, 1, 1]
    assert raw.pool.files == ["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png"]
    assert raw.test is None
    assert raw.skipped == {}


def test_a_test_folder_beside_a_train_folder(make: Make, tmp_path: Path) -> None:
    make(TWO, "images/train")
    raw = imported(make({"dog": [7]}, "images/test"), tmp_path / "raw")
    assert raw.classes == ("cat", "dog")
    assert raw.test is not None
    assert (raw.test.images[:, 0, 0, 0].tolist(), raw.test.labels.tolist()) == ([7], [1])
    assert raw.pool.files == [
        f"train/{name}" for name in ("cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png")
    ]


def test_nothing_depends_on_where_the_folder_lies_or_on_the_number_of_processes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def content(folder: Path) -> dict[str, bytes]:
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    folder = make({name: list(range(40)) for name in ("c", "b", "a")})
    (folder / "a/5.png").write_text("broken")
    imported(folder, tmp_path / "first", on_bad_file="skip")
    moved = folder.rename(tmp_path / "moved")
    monkeypatch.setattr(folders, "FILES_PER_JOB", 7)
    imported(moved, tmp_path / "second", on_bad_file="skip")
    assert content(tmp_path / "first") == content(tmp_path / "second")
    monkeypatch.setattr(folders, "cores", lambda: 1)
    imported(moved, tmp_path / "third", on_bad_file="skip")
    assert content(tmp_path / "first") == content(tmp_path / "third")


def test_size_and_channels_are_found_or_given(make: Make, tmp_path: Path) -> None:
    folder = make(TWO, size=(40, 100))
    assert imported(folder, tmp_path / "a").pool.images.shape[1:] == (1, 40, 40)
    Image.new("RGB", (40, 100), (200, 0, 0)).save(folder / "dog/red.jpg")
    assert imported(folder, tmp_path / "b").pool.images.shape[1:] == (3, 40, 40)
    assert imported(folder, tmp_path / "c", channels=1, image_size=16).pool.images.shape[1:] == (1, 16, 16)
    assert imported(folder, tmp_path / "d", image_size=[8, 24]).pool.images.shape[1:] == (3, 8, 24)
    Image.new("L", (500, 400)).save(folder / "cat/large.png")
    for number in range(20):
        Image.new("L", (500, 400), number).save(folder / f"cat/large{number}.png")
    assert imported(folder, tmp_path / "e").pool.images.shape[1:] == (3, 64, 64)


def test_colour_that_the_sample_missed_is_not_lost(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(TWO)
    Image.new("RGB", (12, 10), (200, 0, 0)).save(folder / "cat/1.png")
    monkeypatch.setattr(folders, "SAMPLE", 2)
    raw = imported(folder, tmp_path / "raw")
    assert raw.pool.images[1, :, 0, 0].tolist() == [200, 0, 0]
    assert raw.pool.images[0, :, 0, 0].tolist() == [10, 10, 10]


def test_files_lie_at_any_depth_and_litter_is_passed_over(make: Make, tmp_path: Path) -> None:
    folder = make(TWO)
    (folder / "cat/more/deep").mkdir(parents=True)
    Image.new("L", (12, 10), 99).save(folder / "cat/more/deep/9.PNG", "PNG")
    for litter in ("Thumbs.db", "desktop.ini", ".DS_Store", ".hidden.png"):
        (folder / "cat" / litter).write_text("x")
    (folder / ".git").mkdir()
    raw = imported(folder, tmp_path / "raw")
    assert raw.pool.files is not None
    assert raw.pool.files[3] == "cat/more/deep/9.PNG"
    assert len(raw.pool.files) == 6


def spoil(folder: Path) -> dict[str, str]:
    """Put every kind of bad file into a folder; what is said of each."""
    outside = folder.parent / "outside"
    outside.mkdir()
    Image.new("L", (12, 10), 1).save(outside / "secret.png")
    (folder / "cat/notes.txt").write_text("not an image")
    (folder / "cat/cut.png").write_bytes((folder / "cat/0.png").read_bytes()[:50])
    (folder / "cat/out.png").symlink_to(outside / "secret.png")
    (folder / "cat/broken.png").symlink_to(folder / "nowhere.png")
    (folder / "cat/loop").symlink_to(folder / "cat/loop")
    (folder / "cat/round").symlink_to(folder / "cat")
    (folder / "bird").symlink_to(outside)
    (folder / "same").symlink_to(folder / "cat")
    (folder / "readme.md").write_text("about")
    os.mkfifo(folder / "cat/pipe.png")
    Path(os.fsdecode(os.fsencode(folder / "cat") + b"/\xff.png")).write_text("x")
    return {
        "cat/notes.txt": "is no image",
        "cat/cut.png": "is damaged",
        "cat/out.png": "is a link that leads out",
        "cat/broken.png": "is a link that leads out of data.folder, or nowhere",
        "cat/loop": "is a link that leads out of data.folder, or nowhere",
        "cat/round": "is a link to a folder",
        "bird": "is a link that leads out",
        "same": "is a link to a folder",
        "readme.md": "lies in no class folder",
        "cat/pipe.png": "is no file",
        "cat/\\udcff.png": "is no image",
    }


def test_bad_files_are_all_named_in_one_error(make: Make, tmp_path: Path) -> None:
    folder = make(TWO)
    expected = spoil(folder)
    message = refusal(folder, tmp_path / "raw")
    assert f"{len(expected)} files are no images of a class" in message
    assert "data.on_bad_file: skip" in message
    for file, why in expected.items():
        assert f"  {file!r} {why}" in message


def test_bad_files_are_skipped_and_listed(make: Make, tmp_path: Path) -> None:
    folder = make(TWO)
    expected = spoil(folder)
    (folder / "cat/link.png").symlink_to(folder / "dog/0.png")
    raw = imported(folder, tmp_path / "raw", on_bad_file="skip")
    assert set(raw.skipped) == set(expected)
    assert all(raw.skipped[file].startswith(why) for file, why in expected.items())
    assert raw.classes == ("cat", "dog")
    assert raw.pool.files == ["cat/0.png", "cat/1.png", "cat/2.png", "cat/link.png", "dog/0.png", "dog/1.png"]
    assert raw.pool.images[:, 0, 0, 0].tolist() == [10, 20, 30, 40, 40, 50]
    assert raw.pool.labels.tolist() == [0, 0, 0, 0, 1, 1]


def test_many_bad_files_are_counted(make: Make, tmp_path: Path) -> None:
    folder = make(TWO)
    for number in range(25):
        (folder / f"cat/{number:02}.txt").write_text("x")
    message = refusal(folder, tmp_path / "raw")
    assert message.count("is no image") == 20
    assert "and 5 more" in message


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"cat": [1]}, "expected a folder for each of 2 or more classes, found ['cat']"),
        ({}, "no such folder"),
        ({"cat": [1], "dog": []}, "class 'dog' has no images: add some, or remove it"),
        ({"cat": [1], "Cat": [2]}, "differ by case, or by the coding of their letters, only"),
        ({"é": [1], unicodedata.normalize("NFD", "é"): [2]}, "differ by case, or by the coding of their letters, only"),
        ({"train/a": [1], "train/b": [1], "test/c": [1]}, "'c' is no class of"),
        ({"train/a": [1], "train/b": [1], "test": [1]}, "may be read in two ways"),
        ({"train/a": [1], "train/b": [1], "test/a": [1], "val/a": [1]}, "may be read in two ways"),
        ({"train/a": [1], "train/b": [1], "test/a": []}, "has no images: add some, or remove it"),
        ({"train/a": [1], "val/a": [1]}, "train, val hold no images themselves"),
        ({"Training/a": [1], "dog": [1]}, "Training hold no images themselves"),
    ],
)
def test_layouts_that_are_refused(make: Make, tmp_path: Path, classes: dict[str, list[int]], message: str) -> None:
    folder = make(classes)
    found = refusal(folder, tmp_path / "raw")
    assert found.startswith("data.folder: ")
    assert message in found


def test_classes_may_be_called_train_and_test(make: Make, tmp_path: Path) -> None:
    assert imported(make({"train": [1], "test": [2]}), tmp_path / "raw").classes == ("test", "train")


def test_a_class_without_a_readable_image_is_refused_also_when_skipping(make: Make, tmp_path: Path) -> None:
    folder = make(TWO)
    for file in (folder / "dog").iterdir():
        file.write_text("x")
    assert "no image of class 'dog' can be read" in refusal(folder, tmp_path / "raw", on_bad_file="skip")


def test_a_test_set_without_a_readable_image_is_refused_also_when_skipping(make: Make, tmp_path: Path) -> None:
    folder = make({"train/a": [1], "train/b": [2], "test/a": [3]})
    (folder / "test/a/0.png").write_text("x")
    message = refusal(folder, tmp_path / "raw", on_bad_file="skip")
    assert message == f"data.folder: {folder / 'test'}: no image can be read"


def test_train_and_test_are_no_links_and_what_lies_beside_them_is_bad(make: Make, tmp_path: Path) -> None:
    folder = make({"train/a": [1], "train/b": [2], "test/a": [3]})
    (folder / "readme.md").write_text("about")
    raw = imported(folder, tmp_path / "raw", on_bad_file="skip")
    assert dict(raw.skipped) == {"readme.md": "lies in no class folder"}
    (folder / "train").rename(tmp_path / "elsewhere")
    (folder / "train").symlink_to(tmp_path / "elsewhere")
    assert f"{folder / 'train'}: is a link to a folder" in refusal(folder, tmp_path / "raw2", on_bad_file="skip")


def test_the_test_set_does_not_shape_the_size(make: Make, tmp_path: Path) -> None:
    folder = make({"train/a": [1], "train/b": [2]})
    make({"test/a": [3] * 5}, size=(30, 30))
    raw = imported(folder, tmp_path / "raw")
    assert raw.test is not None
    assert raw.pool.images.shape[2:] == raw.test.images.shape[2:] == (10, 10)


def test_names_in_any_script_and_with_any_character(make: Make, tmp_path: Path) -> None:
    names = ["犬", "Жираф", "ñandú", "a b", "quo'te\"", "new\nline", "😀"]
    folder = make({name: [number] for number, name in enumerate(names)})
    strange = os.fsencode(folder / "a b") + b"/\xff\xfe.png"
    Image.new("L", (12, 10), 42).save(folder / "tmp.png")
    (folder / "tmp.png").rename(os.fsdecode(strange))
    (folder / "犬").rename(os.fsdecode(os.fsencode(folder) + b"/\xff"))
    names[0] = "\\udcff"
    raw = imported(folder, tmp_path / "raw")
    assert raw.classes == tuple(sorted(names))
    assert raw.pool.files is not None
    assert "a b/\\udcff\\udcfe.png" in json.loads(json.dumps(raw.pool.files, ensure_ascii=False).encode())
    values: dict[str, list[int]] = {name: [] for name in raw.classes}
    for image, label in zip(raw.pool.images, raw.pool.labels, strict=True):
        values[raw.classes[label]].append(int(image.max()))
    assert values == {name: [number] + [42] * (name == "a b") for number, name in enumerate(names)}


@pytest.mark.parametrize("file", ["source.json", "pool/images.npy", "pool/labels.npy", "pool/files.json"])
def test_a_damaged_import_is_refused_with_the_way_out(make: Make, tmp_path: Path, file: str) -> None:
    imported(make(TWO), tmp_path / "raw")
    (tmp_path / "raw" / file).write_text("broken")
    with pytest.raises(TenfoldError, match="dvc repro -f download"):
        folders.read(tmp_path / "raw")


def test_arrays_that_do_not_go_together_are_refused(make: Make, tmp_path: Path) -> None:
    imported(make(TWO), tmp_path / "raw")
    np.save(tmp_path / "raw/pool/labels.npy", np.zeros(3, np.int64))
    with pytest.raises(TenfoldError, match="5 images, 3 labels, 5 files"):
        folders.read(tmp_path / "raw")


PROGRAM = """
import sys
from pathlib import Path
from tenfold.data import folders
from tenfold.data.arrays import Raw
from tenfold.params import Params
data = Params.load(Path(sys.argv[1])).data
folders.FILES_PER_JOB = 50
folders.obtain(data.model_copy(update={"dataset": "folder", "folder": sys.argv[2]}), Path(sys.argv[3]))
"""


@pytest.fixture
def importing(make: Make, tmp_path: Path) -> subprocess.Popen[str]:
    """A process that imports thousands of files, in the middle of it."""
    folder = make({"a": [0], "b": [1]}, size=(1000, 1000))
    for number in range(3000):
        os.link(folder / "a/0.png", folder / f"a/x{number}.png")
    (tmp_path / "raw").mkdir()
    arguments = (str(CHECKOUT / "params.yaml"), str(folder), str(tmp_path / "raw"))
    process = subprocess.Popen(
        (sys.executable, "-c", PROGRAM, *arguments), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 30
    while len(psutil.Process(process.pid).children()) < min(2, folders.cores()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.skipif(folders.cores() < 2, reason="one processor decodes in the process itself")
def test_a_killed_process_ends_the_import_with_a_message(importing: subprocess.Popen[str]) -> None:
    children = psutil.Process(importing.pid).children()
    children[0].send_signal(signal.SIGKILL)
    _, errors = importing.communicate(timeout=30)
    assert importing.returncode == 1
    assert "a process that decodes images was killed" in errors
    assert not psutil.wait_procs(children, timeout=10)[1]


@pytest.mark.skipif(folders.cores() < 2, reason="one processor decodes in the process itself")
@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_import(importing: subprocess.Popen[str], signal_: signal.Signals) -> None:
    children = psutil.Process(importing.pid).children()
    importing.send_signal(signal_)
    importing.communicate(timeout=30)
    assert importing.returncode != 0
    assert not psutil.wait_procs(children, timeout=10)[1]


def test_the_example_is_a_folder_of_images(tmp_path: Path) -> None:
    raw = imported(CHECKOUT / "data/example", tmp_path / "raw")
    assert raw.classes == ("circle", "square", "triangle")
    assert raw.pool.images.shape == (120, 3, 32, 32)
    assert json.loads((tmp_path / "raw/source.json").read_text())["skipped"] == {}
