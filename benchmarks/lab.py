"""What the benchmarks share: a clone to measure in, the machine in words, and their place in docs/benchmarks.md."""

from __future__ import annotations

import os
import platform
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn
from torch.optim import Optimizer

from tenfold.data.augment import distort
from tenfold.params import Train
from tenfold.training.tricks import effective_precision

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs/benchmarks.md"
sys.path.insert(0, str(PROJECT))

from tests.checkout import Checkout, clean_environment, clone, commit  # noqa: E402

__all__ = ["Checkout", "clean_environment", "commit"]


def autocast(train: Train) -> torch.autocast:
    """The precision of a recipe, for plain torch."""
    return torch.autocast("cpu", torch.bfloat16, enabled=effective_precision(train) == "bf16-mixed")


def bare_step(train: Train, network: nn.Module, optimizer: Optimizer, images: Tensor, labels: Tensor) -> None:
    """One step of a recipe in plain torch: augment, forward, backward, optimizer."""
    images = distort(images, **train.augment.amounts())
    with autocast(train):
        loss = F.cross_entropy(network(images), labels, label_smoothing=train.label_smoothing)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@contextmanager
def checkout(recipe: str = "balanced") -> Iterator[Checkout]:
    """A clone in a temporary folder, with the data at hand and a recipe applied; `balanced` is what is shipped."""
    with TemporaryDirectory(prefix="tenfold-bench-") as folder:
        made = clone(Path(folder) / "project")
        (Path(folder) / "shared").symlink_to((PROJECT.parent / "shared").resolve())
        made.tenfold("recipe", recipe)
        yield made


def machine() -> str:
    """The machine in one line."""
    model = "unknown processor"
    if (info := Path("/proc/cpuinfo")).exists() and (
        found := re.search(r"model name\s*:\s*(.*)", info.read_text(encoding="utf-8"))
    ):
        model = found[1]
    flags = [flag for flag in ("avx2", "avx512_bf16", "amx_bf16") if torch.cpu.get_capabilities().get(flag)]
    return (
        f"{os.cpu_count()} cores of {model} ({', '.join(flags)}), {platform.system()}, "
        f"torch {torch.__version__.split('+')[0]}, {torch.get_num_threads()} threads"
    )


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, and lowest to highest."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def mean(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def publish(
    name: str, text: str, headers: Sequence[str], rows: Sequence[Sequence[Any]], notes: str = "", page: Path = PAGE
) -> None:
    """Print a table with what stands above and below it, and put them in their place on a page.

    Args:
        name: of the place, which begins with `<!-- name -->` and ends with `<!-- end of name -->`.
        text: what was measured, and how; the machine is added.
        headers: of the columns.
        rows: of the table.
        notes: what stands below.
        page: where the place is.
    """
    table = tabulate(rows, headers, tablefmt="github", disable_numparse=True)
    whole = "\n\n".join(part for part in (f"{text}\nMachine: {machine()}.", table, notes) if part)
    print(whole, flush=True)
    put(name, whole, page)


def put(name: str, whole: str, page: Path) -> None:
    """Put text in its place on a page: between `<!-- name -->` and `<!-- end of name -->`."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = page.read_text(encoding="utf-8").split(start)
    page.write_text(f"{before}{start}{whole}\n{end}{rest.split(end)[1]}", encoding="utf-8")
