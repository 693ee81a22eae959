"""What the outs of a stage depend on, by `dvc.yaml`: it names what is kept between two runs of the stage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tenfold import paths
from tenfold.errors import TenfoldError

VERSIONS = ("torch", "pytorch-lightning")


def inputs(stage: str) -> dict[str, str]:
    """The SHA-256 of each file that a stage depends on; the split's summary, which holds its hashes, stands for it.

    Raises:
        TenfoldError: one is missing.
    """
    return _sha256(paths.SUMMARY if Path(dep) == paths.SPLIT else Path(dep) for dep in _declared(stage)["deps"])


def code(stage: str) -> dict[str, str]:
    """The SHA-256 of each file of code that a stage depends on, and the versions of what trains.

    Raises:
        TenfoldError: a file is missing.
    """
    files = _sha256(Path(dep) for dep in _declared(stage)["deps"] if dep.startswith("src/"))
    return files | {package: version(package) for package in VERSIONS}


def settings(stage: str, flat: dict[str, Any]) -> dict[str, Any]:
    """Of all settings, by dotted key, those that a stage depends on."""
    groups = tuple(f"{name}." for name in _declared(stage)["params"])
    return {key: value for key, value in flat.items() if f"{key}.".startswith(groups)}


def _declared(stage: str) -> dict[str, list[str]]:
    stages: dict[str, dict[str, list[str]]] = YAML(typ="safe").load(Path("dvc.yaml"))["stages"]
    return stages[stage]


def _sha256(files: Iterable[Path]) -> dict[str, str]:
    try:
        return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    except OSError as error:
        raise TenfoldError(f"{error.filename}: cannot be read ({error.strerror}). Make it: dvc repro") from None
