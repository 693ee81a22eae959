"""The pipeline with other settings, as a DVC experiment: what `tenfold repro` and so `mlflow run` do."""

from __future__ import annotations

import difflib
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tenfold import paths
from tenfold.errors import TenfoldError
from tenfold.params import Params, describe

DVC = """
import functools, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from configobj import ConfigObj
from dvc_data.index import index
ConfigObj.__init__ = functools.partialmethod(ConfigObj.__init__, default_encoding="utf-8")
index.DataIndexDirError = type("DataIndexDirError", (index.DataIndexDirError, FileNotFoundError), {})
from dvc.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The `dvc` command, which by itself heeds no SIGINT if it was started in the background of a script, cannot write its
configuration in a path that has letters beyond ASCII, and saves no experiment whose lock names a folder that is in no
cache (in a new clone, all are): to it that is now a file that is missing.
"""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
ENDED_BY = (signal.SIGINT, signal.SIGINT, signal.SIGKILL)
"""What DVC and its stage get at the first, second and third signal; it happens that DVC swallows one."""
PATIENCE_S = 10
"""After which they get the next."""
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
    for key, value in values.items():
        command += ["--set-param", f"{key}={json.dumps(value, ensure_ascii=False)}"]
    command += [until] if until else []
    try:
        status = _run(command)
    except SystemExit:  # what DVC had queued and not begun, its next `exp run` would do
        subprocess.run(["git", "update-ref", "-d", "refs/exps/stash"], check=False)
        raise
    if status != 0:
        raise TenfoldError("the pipeline failed; its message stands above. Nothing in the working tree has changed")
    if run_id and name and until not in BEFORE_TRAINING:
        _fill(run_id, name)


def _run(command: list[str]) -> int:
    """Run DVC in a process group of its own, all of which ends before a signal ends this process."""
    child: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def end(number: int, frame: FrameType | None = None) -> None:
        received.append(number)
        signal.alarm(PATIENCE_S)
        if child:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, ENDED_BY[min(len(received), len(ENDED_BY)) - 1])

    heeded = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # `nohup` stays in force
    before = {number: signal.signal(number, end) for number in heeded}
    try:
        child = subprocess.Popen(command, start_new_session=True)
        if received:  # while it was started
            end(received.pop())
        status = child.wait()
        if received:
            with suppress(ProcessLookupError):  # nothing has outlived DVC
                os.killpg(child.pid, signal.SIGKILL)
            sys.exit(128 + received[0])
        return status
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _fill(run_id: str, experiment: str) -> None:
    """Bring the outer MLflow run in line with the files of a DVC experiment; code and machine are those at hand."""
    from dvc.api import DVCFileSystem
    from dvc_data.index import DataIndexDirError

    from tenfold.tracking import provenance, runs, store, sync

    files = DVCFileSystem(rev=experiment)
    with tempfile.TemporaryDirectory() as scratch:
        for path in sync.FILES:
            target = Path(scratch) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError, DataIndexDirError):  # of a later stage: nowhere, or in no cache
                files.get(path.as_posix(), str(target), recursive=files.isdir(path.as_posix()))
        print(sync.sync(Path(scratch), run_id))
    run = runs.get_run(run_id)
    there = run.data.tags if run else {}
    known = provenance.source_tags(Path()) | provenance.machine_tags() | {"tenfold.dvc_experiment": experiment}
    fresh = {name: value for name, value in known.items() if name not in there}
    if fresh.get(provenance.DIRTY) == "true":
        store.client().log_text(run_id, provenance.changes(Path()), "source/changes.diff")
    store.set_tags(run_id, fresh)
