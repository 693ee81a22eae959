"""The pipeline with other settings, as a DVC experiment: what `tenfold repro` and so `mlflow run` do."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tenfold import paths
from tenfold.errors import TenfoldError
from tenfold.params import Params, describe

DVC = """
import functools, sys
from configobj import ConfigObj
ConfigObj.__init__ = functools.partialmethod(ConfigObj.__init__, default_encoding="utf-8")
from dvc.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The `dvc` command; by itself it cannot write its configuration in a path that has letters beyond ASCII."""

LOCK, CACHE = Path("dvc.lock"), Path(".dvc/cache/files/md5")
BEFORE_TRAINING = ("download", "split", "tune")
"""Stages after which there is no model yet, whose run could be filled."""


def flat_names() -> dict[str, str]:
    """Flat name to dotted key: `{"max_epochs": "train.max_epochs", "data_dataset": "data.dataset"}`.

    MLflow puts the names through `str.format` and onto a command line, where dots do not pass.
    """
    return {key.removeprefix("train.").replace(".", "_"): key for key in describe()}


def parse_overrides(arguments: list[str]) -> dict[str, str]:
    """Read `--name value` and `--name=value` into dotted keys and their values, as typed.

    Raises:
        TenfoldError: a name that is no setting, a value that is missing, or two values for one name.
    """
    names = flat_names()
    overrides: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        option, separator, value = rest.pop(0).partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if not option.startswith("--") or name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean --{near[0]}?" if near else "all are listed by: tenfold repro --help"
            raise TenfoldError(f"{option}: no such setting; {hint}")
        if not separator:
            if not rest:
                raise TenfoldError(f"{option}: a value is missing: {option} VALUE")
            value = rest.pop(0)
        if names[name] in overrides:
            raise TenfoldError(f"{option}={value}: given twice")
        overrides[names[name]] = value
    return overrides


def check_overrides(overrides: dict[str, str]) -> dict[str, Any]:
    """Hold params.yaml with these values in it against the schema, before anything runs.

    Returns:
        The values, as YAML reads them.

    Raises:
        TenfoldError: as `Params.load` does.
    """
    yaml = YAML(typ="safe", pure=True)
    document: Any = yaml.load(paths.PARAMS.read_text(encoding="utf-8"))
    values: dict[str, Any] = {}
    for key, value in overrides.items():
        section = document
        *parents, leaf = key.split(".")
        for parent in parents:
            section = section[parent]
        try:
            section[leaf] = values[key] = yaml.load(value)
        except YAMLError:
            raise TenfoldError(f"{key}: {value!r} is not a YAML value") from None
    Params.check(document, "the settings given")
    return values


def reproduce(arguments: list[str], until: str | None) -> None:
    """Run the pipeline, or its part up to the stage `until`, in a temporary copy, with the settings in `arguments`.

    The working tree stays as it is, `params.yaml` included; the outcome is a DVC experiment (`dvc exp show`,
    `dvc exp apply`). Inside `mlflow run` the outer run is filled from the experiment's files, whatever was cached.

    Raises:
        TenfoldError: a setting is wrong, or the pipeline failed.
    """
    Params.load()
    values = check_overrides(parse_overrides(arguments))
    run_id = os.environ.get("MLFLOW_RUN_ID")
    name = f"mlflow-{run_id[:12]}" if run_id else None
    command = [sys.executable, "-c", DVC, "exp", "run", "--temp"]
    command += ["--name", name] if name else []
    command += [part for key, value in values.items() for part in ("--set-param", f"{key}={json.dumps(value)}")]
    command += [until] if until else []
    with _lock_of_what_is_there():
        status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise TenfoldError("the pipeline failed; its message stands above. Nothing in the working tree has changed")
    if run_id and name and until not in BEFORE_TRAINING:
        _fill(run_id, name)


def _cached(md5: str) -> bool:
    return (CACHE / md5[:2] / md5[2:]).exists()


@contextmanager
def _lock_of_what_is_there() -> Iterator[None]:
    """Leave out of `dvc.lock`, for a while, stages whose outs are nowhere: of a new clone, that is all.

    DVC cannot save an experiment whose lock names files that it does not have.
    """
    original = LOCK.read_bytes() if LOCK.is_file() else b""
    lock: dict[str, Any] = YAML(typ="safe", pure=True).load(original) or {"stages": {}}
    stages = {
        name: stage
        for name, stage in lock["stages"].items()
        if all(Path(out["path"]).is_file() or _cached(out["md5"]) for out in stage["outs"])
    }
    if len(stages) == len(lock["stages"]):
        yield
        return
    try:
        with LOCK.open("wb") as file:
            YAML(typ="safe", pure=True).dump(lock | {"stages": stages}, file)
        yield
    finally:
        LOCK.write_bytes(original)


def _fill(run_id: str, experiment: str) -> None:
    """Bring the outer MLflow run in line with the files of a DVC experiment."""
    from dvc.api import DVCFileSystem

    from tenfold.tracking import sync

    files = DVCFileSystem(rev=experiment)
    with tempfile.TemporaryDirectory() as scratch:
        for path in sync.FILES:
            if files.exists(path.as_posix()):
                target = Path(scratch) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                files.get(path.as_posix(), str(target), recursive=files.isdir(path.as_posix()))
        print(sync.sync(Path(scratch), run_id))
