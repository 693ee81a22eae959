"""Sets of values with a name: `recipes/*.yaml`, each holding what differs from the shipped settings.

`recipes/balanced.yaml` holds the shipped value of every key that another recipe sets, so that it undoes any of them.
"""

from __future__ import annotations

import difflib
import json
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tenfold import paths
from tenfold.errors import TenfoldError
from tenfold.params import Params, flatten

FOLDER = Path("recipes")
BASE = "balanced"


def describe() -> dict[str, str]:
    """What each recipe is for, by name: the comment at the head of its file."""
    found = {}
    for file in sorted(FOLDER.glob("*.yaml")):
        lines = file.read_text(encoding="utf-8").splitlines()
        head = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
        found[file.stem] = " ".join(line.removeprefix("#").strip() for line in lines[:head])
    return found


def load(name: str) -> dict[str, Any]:
    """The values of a recipe, by dotted key.

    Raises:
        TenfoldError: there is no such recipe, or it is no YAML.
    """
    file = FOLDER / f"{name}.yaml"
    if not file.is_file():
        near = difflib.get_close_matches(name, describe(), n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise TenfoldError(f"recipe {name!r}: there is none{hint} Allowed: {', '.join(describe())}")
    try:
        return dict(flatten(YAML(typ="safe", pure=True).load(file) or {}))
    except YAMLError as error:
        raise TenfoldError(f"{file}: is not valid YAML: {error}") from None


def overrides(name: str) -> str:
    """A recipe as arguments of `dvc exp run`, `-S train.max_epochs=1 …`: the values that `apply` would write."""
    values = {key: json.dumps(value, separators=(",", ":"), ensure_ascii=False) for key, value in _values(name).items()}
    return " ".join(f"-S {key}={value}" for key, value in values.items())


def apply(name: str) -> dict[str, tuple[Any, Any]]:
    """Write a recipe into `params.yaml`; comments, order and all other keys stay.

    Returns:
        The keys that changed, each with its value before and after.

    Raises:
        TenfoldError: there is no such recipe, or the settings would contradict each other. Nothing is written then.
    """
    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 1000
    yaml.representer.add_representer(type(None), _write_null)
    document = yaml.load(paths.PARAMS.read_text(encoding="utf-8"))
    before = Params.load().flat()
    for key, value in _values(name).items():
        if key not in before:
            raise TenfoldError(f"{FOLDER / name}.yaml: {key}: unknown key")
        *groups, leaf = key.split(".")
        section = document
        for group in groups:
            section = section[group]
        if before[key] != value:
            section[leaf] = value
    text = StringIO()
    yaml.dump(document, text)
    after = Params.check(YAML(typ="safe", pure=True).load(text.getvalue()), f"{paths.PARAMS} with recipe {name}").flat()
    with paths.writing(paths.PARAMS) as file:
        file.write_text(text.getvalue(), encoding="utf-8")
    return {key: (before[key], after[key]) for key in after if before[key] != after[key]}


def _values(name: str) -> dict[str, Any]:
    """What holds with a recipe, whichever held before."""
    return load(BASE) | load(name)


def _write_null(representer: Any, _: None) -> Any:
    """As people write it; ruamel.yaml would leave the value out."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")
