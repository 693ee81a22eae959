"""The tables and plots of `tenfold tricks`: what each trick brings, with intervals that say what is no effect."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from scipy import stats

from tenfold import paths
from tenfold.measure.cells import LADDER, TRICKS, Cell

Found = Mapping[tuple[Cell, int], Mapping[str, Any]]

TITLES = {TRICKS: "Each trick alone", LADDER: "The article's ladder"}
COLUMNS = (
    "",
    "n",
    "fit, s",
    "times as long",
    "images/s",
    "memory, MB",
    "evaluation, s",
    "val acc, %",
    "test acc, %",
    "effect on test, points",
)
NOTHING = "no effect here"


@dataclass(frozen=True)
class Effect:
    """A mean difference of pairs.

    Attributes:
        mean: of the differences.
        low, high: bounds of its 95 % interval by Student's t; infinite with fewer than two pairs.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, differences: Sequence[float]) -> Effect:
        """From differences of pairs (the same seed with and without)."""
        mean = statistics.mean(differences)
        if len(differences) < 2:
            return cls(mean, -math.inf, math.inf)
        error = statistics.stdev(differences) / math.sqrt(len(differences))
        reach = float(stats.t.ppf(0.975, len(differences) - 1)) * error
        return cls(mean, mean - reach, mean + reach)

    @property
    def is_none(self) -> bool:
        """Whether the interval holds zero, so that nothing has been shown."""
        return self.low <= 0 <= self.high

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"{self.mean:+.2f} (n=1)"
        return f"{self.mean:+.2f} ({self.low:+.2f} to {self.high:+.2f})" + (f": {NOTHING}" if self.is_none else "")


def rows(name: str, cells: Sequence[Cell], found: Found) -> Iterator[list[str]]:
    """The rows of one table, as text: means ± standard deviations, and what differs from the row compared with."""
    by_name = {cell.name: cell for cell in cells if cell.table == name}
    for cell in by_name.values():
        results = {seed: result for (one, seed), result in found.items() if one is cell}
        if not results:
            continue

        def of(key: str, digits: int, scale: float = 1.0, results: Mapping[int, Mapping[str, Any]] = results) -> str:
            return _spread([scale * result[key] for result in results.values()], digits)

        other = by_name.get(cell.compared_with or "")
        pairs = [
            (result, found[other, seed])
            for seed, result in results.items()
            if other is not None and (other, seed) in found
        ]
        yield [
            cell.name,
            str(len(results)),
            of("fit_s", 2),
            _times([with_it["fit_s"] / without["fit_s"] for with_it, without in pairs]) if pairs else "",
            of("samples_per_s", 0),
            of("memory_mb", 0),
            of("evaluate_s", 2),
            of("val_acc", 2, 100),
            of("test_acc", 2, 100),
            str(Effect.of([100 * (with_it["test_acc"] - without["test_acc"]) for with_it, without in pairs]))
            if pairs
            else "",
        ]


def _times(ratios: Sequence[float]) -> str:
    """A geometric mean of ratios of pairs, and its 95 % interval."""
    log = Effect.of([math.log(ratio) for ratio in ratios])
    if math.isinf(log.high):
        return f"×{math.exp(log.mean):.2f} (n=1)"
    low, mean, high = (math.exp(value) for value in (log.low, log.mean, log.high))
    return f"×{mean:.2f} ({low:.2f} to {high:.2f})" + (f": {NOTHING}" if log.is_none else "")


def show(cells: Sequence[Cell], found: Found) -> Group:
    """The tables, for a terminal."""
    tables = []
    for name, title in TITLES.items():
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for number, heading in enumerate(COLUMNS):
            table.add_column(heading, justify="right" if 0 < number < len(COLUMNS) - 1 else "left")
        for row in rows(name, cells, found):
            table.add_row(*row)
        if table.row_count:
            tables.append(table)
    return Group(*tables)


def write(folder: Path, cells: Sequence[Cell], found: Found) -> None:
    """Write `folder`: the tables as Markdown, every result as CSV, a plot per table."""
    from tenfold.report import figures

    with paths.writing(folder) as made:
        made.mkdir()
        (made / "tricks.md").write_text(markdown(cells, found), encoding="utf-8")
        _write_results(made / "results.csv", found)
        for name, title in TITLES.items():
            shown = [cell for cell in cells if cell.table == name and any(one is cell for one, _ in found)]
            if shown:
                accuracies = {
                    cell.name: [r["test_acc"] for (one, _), r in found.items() if one is cell] for cell in shown
                }
                seconds = {cell.name: [r["fit_s"] for (one, _), r in found.items() if one is cell] for cell in shown}
                figures.save(figures.comparison(title, seconds, accuracies), made / f"{name}.png")


def markdown(cells: Sequence[Cell], found: Found) -> str:
    """The tables as Markdown."""
    parts = []
    for name, title in TITLES.items():
        lines = [" | ".join(row) for row in rows(name, cells, found)]
        if lines:
            rule = " | ".join("---" for _ in COLUMNS)
            body = "\n".join(f"| {line} |" for line in [" | ".join(COLUMNS), rule, *lines])
            parts.append(f"**{title}**\n\n{body}\n")
    return "\n".join(parts)


def _write_results(path: Path, found: Found) -> None:
    names = list(dict.fromkeys(name for result in found.values() for name in result))
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["table", "name", "seed", *names])
        for (cell, seed), result in found.items():
            table.writerow([cell.table, cell.name, seed, *(result.get(name, "") for name in names)])


def _spread(values: Sequence[float], digits: int) -> str:
    deviation = f" ± {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):,.{digits}f}{deviation}"
