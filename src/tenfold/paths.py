"""Where things lie. All paths are relative to the project's root, which is the working directory of every stage."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tenfold.errors import TenfoldError

PARAMS = Path("params.yaml")
RAW = Path("data/raw")
SPLIT = Path("data/split")
SUMMARY = SPLIT / "summary.json"
TUNE = Path("reports/tune")
TUNE_RESULT = TUNE / "tune.json"
BEST_CHECKPOINT = Path("models/best.ckpt")
TRAIN_REPORT = Path("reports/train")
HISTORY = TRAIN_REPORT / "history.csv"
METRICS = Path("reports/metrics.json")
EVALUATION = Path("reports/evaluate")
ONNX_MODEL = Path("models/model.onnx")


def find_root(start: Path | None = None) -> Path:
    """The nearest folder, from `start` (default: the working directory) upwards, that holds a pipeline (`dvc.yaml`).

    Raises:
        TenfoldError: no folder on the way up does.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "dvc.yaml").is_file():
            return folder
    raise TenfoldError(
        f"{start}: no Tenfold project here (no folder upwards holds dvc.yaml). Change into a clone of the project."
    )


def home() -> Path:
    """The main checkout, absolute: what is not versioned (the MLflow store, `../shared`) hangs on it.

    DVC runs queued and temporary experiments in a copy of the project and names the original in `DVC_ROOT`.
    """
    return Path(os.environ.get("DVC_ROOT") or Path.cwd()).resolve()


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Write a file or a folder whole or not at all.

    Yields a temporary path beside `path` (parent folders exist, the path itself does not), which takes the
    place of `path` when the block ends well and is deleted when it does not.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.*.tmp"):  # by a process that was killed
        if not psutil.pid_exists(int(left.name.split(".")[-2])):
            _delete(left)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _delete(temporary)
    try:
        yield temporary
        _delete(path)
        temporary.replace(path)
    finally:
        _delete(temporary)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
