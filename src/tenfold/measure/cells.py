"""What there is to measure: `tricks.yaml`, as settings with a name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tenfold.errors import TenfoldError
from tenfold.params import Params

FILE = Path("tricks.yaml")
TRICKS, LADDER = "tricks", "ladder"
BESIDE, AGAINST = "beside", "against"
"""No settings: a rung that is shown, and not built upon; and what a trick is compared with in place of base."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One row of a table: settings to train with.

    Attributes:
        table: `tricks` or `ladder`.
        name: of the row.
        params: all settings, with the seed of the shipped ones.
        compared_with: name of the row that it is compared with; None for the first.
    """

    table: str
    name: str
    params: Params
    compared_with: str | None


def load(params: Params, file: Path = FILE) -> list[Cell]:
    """The rows of both tables, in their order; each is checked as `params.yaml` is.

    Raises:
        TenfoldError: the file is missing, is no YAML, or asks for what cannot be.
    """
    try:
        document = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
        base, tricks, ladder = document["base"], document["tricks"], document["ladder"]
        rungs = dict(ladder["rungs"])
        cells = [Cell(TRICKS, "base", _with(params, base, "base", file), None)]
        for name, added in tricks.items():
            more = {key: value for key, value in added.items() if key != AGAINST}
            cells.append(Cell(TRICKS, name, _with(params, base | more, name, file), added.get(AGAINST, "base")))
        keys, before = dict(ladder["start"]), None
        for name, added in rungs.items():
            more = {key: value for key, value in added.items() if key != BESIDE}
            title = name if before is None else f"+ {name}"
            cells.append(Cell(LADDER, title, _with(params, keys | more, name, file), before))
            if not added.get(BESIDE):
                keys, before = keys | more, title
    except OSError as error:
        raise TenfoldError(f"{file}: cannot be read ({error.strerror}). Restore it: git checkout {file}") from None
    except (YAMLError, KeyError, TypeError, AttributeError) as error:
        raise TenfoldError(
            f"{file}: should have `base`, `tricks` and `ladder` (with `start` and `rungs`), each with settings by "
            f"dotted key ({type(error).__name__}: {error})"
        ) from None
    names = {(cell.table, cell.name) for cell in cells}
    for cell in cells:
        if cell.compared_with is not None and (cell.table, cell.compared_with) not in names:
            raise TenfoldError(f"{file}: {cell.name}: {AGAINST}: there is no row {cell.compared_with!r}")
    return cells


def choose(cells: list[Cell], names: list[str]) -> list[Cell]:
    """The cells of these names or tables, and those they are compared with; all, if none is named.

    Raises:
        TenfoldError: there is no such cell.
    """
    if not names:
        return cells
    known = [TRICKS, LADDER, *(cell.name for cell in cells)]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            raise TenfoldError(f"tricks: {name!r} is none of them{f'; did you mean {near[0]!r}?' if near else ''}")
    chosen: set[tuple[str, str | None]] = {
        (cell.table, cell.name) for cell in cells if cell.name in names or cell.table in names
    }
    for cell in reversed(cells):  # what a row is compared with stands before it, and may itself be compared
        if (cell.table, cell.name) in chosen:
            chosen.add((cell.table, cell.compared_with))
    return [cell for cell in cells if (cell.table, cell.name) in chosen]


def _with(params: Params, changes: dict[str, Any], name: str, file: Path) -> Params:
    document = params.model_dump(mode="json")
    known = params.flat()
    for key, value in changes.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise TenfoldError(f"{file}: {name}: {key}: unknown key{f'; did you mean {near[0]}?' if near else ''}")
        *groups, leaf = key.split(".")
        section = document
        for group in groups:
            section = section[group]
        section[leaf] = value
    return Params.check(document, f"{file}: {name}")
