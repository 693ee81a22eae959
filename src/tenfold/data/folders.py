"""A folder of the user's own images: one folder per class becomes arrays in `data/raw/`.

The classes lie in the folder itself, or in its folders `train` and `test`. A file at any depth of a class folder is an
image of it. Files are decoded once, by all processors, straight into a file that is mapped into memory.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import active_children, parent_process
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from tenfold import params
from tenfold.data import images
from tenfold.data.arrays import Images, Raw
from tenfold.data.summary import FILES
from tenfold.errors import TenfoldError

POOL, TEST = "pool", "test"
LITTER = {"thumbs.db", "desktop.ini"}
"""What file managers leave behind; hidden files are passed over as well."""
SAMPLE = 1000
"""Files of which the headers are looked at for `auto`."""
LARGEST_AUTO = 64
"""Side of an image, in pixels, that `image_size: auto` does not go over."""
FILES_PER_JOB = 500
LEADS_OUT = "is a link that leads out of data.folder, or nowhere"
LINK_TO_FOLDER = "is a link to a folder"
IN_NO_CLASS = "lies in no class folder"
PART_NAMES = {"train", "training", "test", "testing", "val", "valid", "validation"}
"""Folders of these names that hold only folders are no classes."""
SHOWN = 20
"""Bad files that an error names."""


@dataclass
class Part:
    """The files of the pool, or of the test set, by path within `data.folder`, each with its label."""

    files: list[str]
    labels: list[int]


class Job(NamedTuple):
    """Some files that a process is to decode into rows of an array, from `start` on."""

    target: Path
    start: int
    files: list[str]
    size: tuple[int, int]
    channels: int


class Done(NamedTuple):
    """What came of a job: the files that could not be read, by number, and whether any of the others has colour."""

    bad: dict[int, str]
    has_colour: bool


def obtain(data: params.Data, target: Path) -> None:
    """Import `data.folder` into an existing folder.

    Writes for `pool`, and for `test` if there is one, `images.npy` (uint8 [N, C, H, W]), `labels.npy` (int64 [N]) and
    `files.json` (paths within the folder); and `source.json`: the classes, and the files that were skipped, and why.

    Raises:
        TenfoldError: the folder is not laid out as it should be, a class is empty, or a file cannot be read and
            `data.on_bad_file` is `fail`.
    """
    root = Path(data.folder)
    classes, parts, bad = _scan(root)
    size, has_colour = _look(root, parts[POOL].files, data)  # the test set shapes nothing
    for channels in (data.channels,) if data.channels != "auto" else (3,) if has_colour else (1, 3):
        done = {name: _decode(root, part, target / name, size, channels) for name, part in parts.items()}
        if not any(result.has_colour for result in done.values()):
            break
    for name, result in done.items():
        bad |= {_printable(parts[name].files[number]): why for number, why in result.bad.items()}
    if bad and data.on_bad_file == "fail":
        raise _refusal(root, bad)
    for name, part in parts.items():
        _finish(target / name, part, done[name].bad, classes, root)
    source = {"classes": classes, "skipped": dict(sorted(bad.items()))}
    (target / "source.json").write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")
    counts = ", ".join(f"{len(part.files) - len(done[name].bad):,} {name}" for name, part in parts.items())
    shape = f"{channels}×{size[0]}×{size[1]}"
    print(f"folder: {len(classes)} classes, {counts}, as {shape}; {len(bad):,} files skipped", flush=True)


def read(folder: Path) -> Raw:
    """What `obtain` wrote, the images mapped from their files.

    Raises:
        TenfoldError: a file is missing or damaged.
    """
    try:
        source = json.loads((folder / "source.json").read_text(encoding="utf-8"))
        parts = {name: _read(folder / name) for name in (POOL, TEST) if name == POOL or (folder / name).is_dir()}
        return Raw(tuple(source["classes"]), parts[POOL], parts.get(TEST), source["skipped"])
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        raise TenfoldError(
            f"{folder}: holds no imported images ({error}). Import them again: dvc repro -f download"
        ) from None


def _read(folder: Path) -> Images:
    files = json.loads((folder / FILES).read_text(encoding="utf-8"))
    part = Images(np.load(folder / "images.npy", mmap_mode="r"), np.load(folder / "labels.npy"), files)
    if not len(part.images) == len(part.labels) == len(files):
        raise ValueError(f"{folder.name}: {len(part.images)} images, {len(part.labels)} labels, {len(files)} files")
    return part


def _scan(root: Path) -> tuple[list[str], dict[str, Part], dict[str, str]]:
    """Class names, the files of each part, and entries that are no files of a class."""
    if not root.is_dir():
        raise TenfoldError(f"data.folder: {root}: no such folder. It should hold one folder of images per class")
    bad: dict[str, str] = {}
    places = {POOL: root}
    if _is_in_parts(root):
        places = {POOL: root / "train", TEST: root / "test"}
        bad |= {_printable(entry.name): IN_NO_CLASS for entry in _entries(root) if not entry.is_dir()}
    folders = {name: _class_folders(place, root, bad) for name, place in places.items()}
    classes = sorted(folders[POOL])
    if len(classes) < 2:
        raise TenfoldError(
            f"data.folder: {places[POOL]}: expected a folder for each of 2 or more classes, found {classes}"
        )
    if unknown := sorted(set(folders.get(TEST, {})) - set(classes)):
        raise TenfoldError(
            f"data.folder: {places[TEST]}: {unknown[0]!r} is no class of {places[POOL]}: remove or rename it"
        )
    parts = {}
    for name, found in folders.items():
        parts[name] = part = Part([], [])
        for label, of_class in enumerate(classes):
            files = sorted(_walk(os.path.relpath(found[of_class], root), root, bad)) if of_class in found else []
            if not files and name == POOL:
                raise TenfoldError(
                    f"data.folder: {found[of_class]}: class {of_class!r} has no images: add some, or remove it"
                )
            part.files += files
            part.labels += [label] * len(files)
    if not all(part.files for part in parts.values()):
        raise TenfoldError(f"data.folder: {places[TEST]}: has no images: add some, or remove it")
    return classes, parts, bad


def _is_in_parts(root: Path) -> bool:
    """Whether the folder holds `train` and `test`, each with class folders, instead of the class folders themselves."""
    folders = {entry.name: entry for entry in _entries(root) if entry.is_dir()}
    parts = {
        name
        for name in folders
        if name.casefold() in PART_NAMES and all(entry.is_dir() for entry in _entries(root / name))
    }
    if parts and not parts == set(folders) == {"train", "test"}:
        raise TenfoldError(
            f"data.folder: {root}: may be read in two ways. Expected `train` and `test` alone, which hold only class "
            f"folders, or class folders, which hold images; found {', '.join(sorted(folders))}, "
            f"of which {', '.join(sorted(parts))} hold no images themselves"
        )
    if links := sorted(name for name in parts if folders[name].is_symlink()):
        raise TenfoldError(f"data.folder: {root / links[0]}: {LINK_TO_FOLDER}: put the folder itself there")
    return bool(parts)


def _class_folders(place: Path, root: Path, bad: dict[str, str]) -> dict[str, Path]:
    """The class folders in a place, by class name in Unicode's composed form; what else lies there is bad."""
    found: dict[str, Path] = {}
    seen: dict[str, str] = {}
    for entry in _entries(place):
        path = _printable(os.path.relpath(entry.path, root))
        if entry.is_symlink() and not _is_inside(entry.path, root):
            bad[path] = LEADS_OUT
        elif not entry.is_dir():
            bad[path] = IN_NO_CLASS
        elif entry.is_symlink():  # to another class, say, whose images would count for both
            bad[path] = LINK_TO_FOLDER
        else:
            name = unicodedata.normalize("NFC", _printable(entry.name))
            if other := seen.get(name.casefold()):
                raise TenfoldError(
                    f"data.folder: {place}: the class folders {other!r} and {entry.name!r} differ by case, or by the "
                    "coding of their letters, only: rename one, or put their images together"
                )
            seen[name.casefold()] = entry.name
            found[name] = Path(entry.path)
    return found


def _walk(folder: str, root: Path, bad: dict[str, str]) -> Iterator[str]:
    """The files in a folder within `root`, at any depth; both are named by their path within `root`."""
    for entry in _entries(root / folder):
        path = os.path.join(folder, entry.name)  # noqa: PTH118  # there may be millions
        if entry.is_symlink() and not _is_inside(entry.path, root):
            bad[_printable(path)] = LEADS_OUT
        elif entry.is_file():
            yield path
        elif not entry.is_dir():  # a pipe would be waited for, for ever
            bad[_printable(path)] = "is no file"
        elif entry.is_symlink():
            bad[_printable(path)] = LINK_TO_FOLDER
        else:
            yield from _walk(path, root, bad)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".") and entry.name.lower() not in LITTER]
    except OSError as error:
        raise TenfoldError(f"data.folder: {folder}: cannot be read ({error.strerror})") from None


def _printable(name: str) -> str:
    """A name that can be written as UTF-8: bytes that are none, which file names may hold, are spelt out."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _is_inside(link: str, root: Path) -> bool:
    """Whether a link leads to something that exists in `root`."""
    try:
        return Path(link).resolve(strict=True).is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # broken, or going round
        return False


def _look(root: Path, files: Sequence[str], data: params.Data) -> tuple[tuple[int, int], bool]:
    """The size to bring images to, and whether any of a sample has colour."""
    headers = []
    for number in np.linspace(0, len(files) - 1, min(SAMPLE, len(files))).astype(int):
        try:
            headers.append(images.probe(root / files[number]))
        except images.BadImageError:  # named when it is decoded
            continue
    if data.image_size == "auto":
        side = min(LARGEST_AUTO, int(median(min(height, width) for height, width, _ in headers))) if headers else 8
        size = (max(8, side),) * 2
    else:
        height, width = [data.image_size] * 2 if isinstance(data.image_size, int) else data.image_size
        size = (height, width)
    return size, any(has_colour for *_, has_colour in headers)


def _decode(root: Path, part: Part, target: Path, size: tuple[int, int], channels: int) -> Done:
    """Decode all files of a part into `target`/images.npy."""
    from rich.console import Console
    from rich.progress import track

    target.mkdir(exist_ok=True)
    file, count = target / "images.npy", len(part.files)
    np.lib.format.open_memmap(file, "w+", np.uint8, (count, channels, *size)).flush()
    jobs = [
        Job(file, start, [str(root / name) for name in part.files[start : start + FILES_PER_JOB]], size, channels)
        for start in range(0, count, FILES_PER_JOB)
    ]
    processes = min(len(jobs), cores())
    try:
        workers = ProcessPoolExecutor(processes, initializer=_end_with_parent) if processes > 1 else nullcontext()
        with workers as pool, _killing_children():
            results = pool.map(_run, jobs) if pool else map(_run, jobs)
            bar = track(
                results,
                "decode",
                len(jobs),
                console=Console(stderr=True),
                transient=True,
                disable=not sys.stderr.isatty(),
            )
            done = list(bar)
    except BrokenProcessPool:
        raise TenfoldError(
            f"data.folder: {root}: a process that decodes images was killed; is there memory enough?"
        ) from None
    return Done({n: why for one in done for n, why in one.bad.items()}, any(one.has_colour for one in done))


@contextmanager
def _killing_children() -> Iterator[None]:
    """On Ctrl+C, say, end the processes at once; else the jobs that they have begun would be waited for."""
    before = set(active_children())
    try:
        yield
    except BaseException:
        for process in set(active_children()) - before:
            process.kill()
        raise


def _end_with_parent() -> None:
    """Have this process end when its parent does, even if that was killed; nobody else would tell it."""
    parent = parent_process()
    assert parent, "runs in a process of the pool"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _run(job: Job) -> Done:
    """Decode some files. One job maps the array once."""
    rows = np.asarray(np.load(job.target, mmap_mode="r+"))
    bad: dict[int, str] = {}
    has_colour = False
    for number, file in enumerate(job.files, job.start):
        try:
            with open(file, "rb", buffering=0) as stream:  # noqa: PTH123  # a tenth faster than through a Path
                content = stream.read()
            rows[number], colour = images.decode(content, job.size, job.channels)
            has_colour |= colour
        except OSError as error:
            bad[number] = f"cannot be read ({error.strerror})"
        except images.BadImageError as error:
            bad[number] = str(error)
    return Done(bad, has_colour)


def _finish(target: Path, part: Part, bad: dict[int, str], classes: Sequence[str], root: Path) -> None:
    """Write the labels and the names of a part, and leave out the rows of bad files."""
    kept = [number for number in range(len(part.files)) if number not in bad]
    labels = np.array(part.labels, np.int64)[kept]
    counts = np.bincount(labels, minlength=len(classes))
    if not counts.all() and target.name == POOL:
        raise TenfoldError(f"data.folder: {root}: no image of class {classes[int(counts.argmin())]!r} can be read")
    if not kept:
        raise TenfoldError(f"data.folder: {root / 'test'}: no image can be read")
    if bad:
        file = target / "images.npy"
        rows = np.load(file, mmap_mode="r")
        fewer = np.lib.format.open_memmap(target / "kept.npy", "w+", np.uint8, (len(kept), *rows.shape[1:]))
        for new, old in enumerate(kept):
            fewer[new] = rows[old]
        fewer.flush()
        (target / "kept.npy").replace(file)
    np.save(target / "labels.npy", labels)
    names = [_printable(part.files[number]) for number in kept]
    (target / FILES).write_text(json.dumps(names, indent=0) + "\n", encoding="utf-8")


def _refusal(root: Path, bad: dict[str, str]) -> TenfoldError:
    shown = [f"  {file!r} {why}" for file, why in sorted(bad.items())[:SHOWN]]
    more = f"\n  … and {len(bad) - SHOWN:,} more" if len(bad) > SHOWN else ""
    return TenfoldError(
        f"data.folder: {root}: {len(bad):,} files are no images of a class:\n"
        + "\n".join(shown)
        + f"{more}\nMend or remove them, or leave them out: data.on_bad_file: skip"
    )


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
