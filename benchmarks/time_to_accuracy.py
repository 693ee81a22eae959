"""Seconds of fit and test accuracy of each recipe, against ten epochs of the article's way, in turns.

Every fit is a fresh process: the stages of the pipeline as they are, with their MLflow run, or benchmarks/article.py.
The article's way gets whichever number of loader processes is faster here. With --article-seeds 0 there is no such row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import lab
from lab import Checkout, clean_environment

ARTICLE = "the article's way"
LOW_DATA = "low-data"
WORKERS = (0, 2)


@dataclass(frozen=True)
class Target:
    """What a recipe is to reach: a test accuracy, within seconds of fit, or so many times faster than the article."""

    accuracy: float
    seconds: float | None = None
    times: float | None = None
    by_mean: bool = False
    """Whether the mean of the accuracies is to reach it, not their median."""


@dataclass
class Fits:
    """What the fits of one kind came to."""

    seconds: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


TARGETS = {
    "fast": Target(0.988, times=130),
    "balanced": Target(0.995, seconds=20),
    "best": Target(0.997, seconds=60),
    LOW_DATA: Target(0.994, seconds=60, by_mean=True),
}


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="*", default=list(TARGETS), help="of " + ", ".join(TARGETS))
    parser.add_argument("--seeds", type=int, default=5, help="fits of each recipe")
    parser.add_argument("--low-data-seeds", type=int, default=10, help="fits of low-data, each on other images")
    parser.add_argument("--article-seeds", type=int, default=5, help="fits of the article's way; 0: none")
    chosen = parser.parse_args()
    reached = []
    if others := [recipe for recipe in chosen.recipes if recipe != LOW_DATA]:
        reached.append(compare(others, chosen.seeds, chosen.article_seeds, "time_to_accuracy"))
    if LOW_DATA in chosen.recipes:
        reached.append(compare([LOW_DATA], chosen.low_data_seeds, 0, "low_data"))
    sys.exit(not all(reached))


def compare(recipes: list[str], seeds: int, article_seeds: int, place: str) -> bool:
    """Measure recipes, and the article's way, in turns, and publish; whether every target is reached."""
    fits = {kind: Fits() for kind in [*recipes, *[ARTICLE] * bool(article_seeds)]}
    with ExitStack() as stack:
        projects = {recipe: stack.enter_context(lab.checkout(recipe)) for recipe in recipes}
        split = stack.enter_context(lab.checkout()) if article_seeds else None
        workers = better_workers(split) if split else 0
        for seed in range(max(seeds, article_seeds)):
            for recipe, project in projects.items():
                if seed < seeds:
                    train(project, seed, fits[recipe])
                    announce(seed, recipe, fits[recipe])
            if split and seed < article_seeds:
                found = article(split, workers, 10, seed)
                fits[ARTICLE].seconds.append(found["fit_s"])
                fits[ARTICLE].accuracies.append(found["test_acc"])
                announce(seed, ARTICLE, fits[ARTICLE])
    return report(fits, workers, place)


def announce(seed: int, kind: str, fits: Fits) -> None:
    """Print what the newest fit came to."""
    print(f"seed {seed}  {kind}: {fits.seconds[-1]:.2f} s, {fits.accuracies[-1]:.2%}", flush=True)


def train(project: Checkout, seed: int, fits: Fits) -> None:
    """One training of the pipeline, from the split on: seconds, test accuracy, most memory in GB."""
    project.edit(r"^seed: .*", f"seed: {seed}")
    project.run("dvc", "repro", "tune")
    with subprocess.Popen(
        [sys.executable, "-m", "tenfold", "train"],
        cwd=project.root,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"the train stage ended with {process.returncode}"
    project.tenfold("evaluate")
    client = project.client()
    run = client.get_run(project.runs("tenfold")[0])
    fits.seconds.append(run.data.metrics["time/fit_s"])
    fits.accuracies.append(json.loads(project.read("reports/metrics.json"))["test"]["acc"])
    fits.memory.append(usage.ru_maxrss * 1024 / 1e9)


def article(project: Checkout, workers: int, epochs: int, seed: int) -> dict[str, float]:
    """One training of the article's way, on the same split."""
    script = str(Path(__file__).with_name("article.py"))
    arguments = f"--workers {workers} --epochs {epochs} --seed {seed}".split()
    found: dict[str, float] = json.loads(project.run(sys.executable, script, *arguments).splitlines()[-1])
    return found


def better_workers(project: Checkout) -> int:
    """The number of loader processes with which one epoch of the article's way is faster; each is tried twice."""
    project.run("dvc", "repro", "split")
    seconds = dict.fromkeys(WORKERS, 0.0)
    for workers in (*WORKERS, *WORKERS):
        seconds[workers] += article(project, workers, 1, 0)["fit_s"] / 2
    print(
        ", ".join(f"{number} loader processes: {mean:.1f} s an epoch" for number, mean in seconds.items()), flush=True
    )
    return min(seconds, key=seconds.__getitem__)


def report(fits: dict[str, Fits], workers: int, place: str) -> bool:
    """Publish the table; whether every target is reached."""
    baseline = statistics.median(fits[ARTICLE].seconds) if ARTICLE in fits else None
    rows, reached = [], True
    for kind, done in fits.items():
        seconds = statistics.median(done.seconds)
        target, wanted, verdict = TARGETS.get(kind), "", ""
        if target:
            average = statistics.mean if target.by_mean else statistics.median
            accurate = average(done.accuracies) >= target.accuracy
            limit = target.seconds or (baseline / target.times if baseline and target.times else None)
            wanted = f"{target.accuracy:.1%} within " + (
                f"{limit:.1f} s" if limit else f"1/{target.times} of the article"
            )
            if limit:  # else there is nothing to compare with
                verdict = "yes" if accurate and seconds <= limit else "no"
            reached = reached and verdict != "no"
        rows.append(
            [
                kind,
                len(done.seconds),
                lab.spread(done.seconds),
                f"{baseline / seconds:.0f}×" if baseline else "",
                lab.mean([100 * value for value in done.accuracies]),
                f"{statistics.median(done.accuracies):.2%}",
                f"{max(done.memory):.2f}" if done.memory else "",
                wanted,
                verdict,
            ]
        )
    lab.publish(
        place,
        f"`benchmarks/{Path(__file__).name}`: each fit in a process of its own, the kinds in turns, seeds from "
        "0. Seconds are median (lowest–highest), accuracies mean ± standard deviation."
        + (f" The article's way: 10 epochs, {workers} loader processes." if baseline else ""),
        [
            "recipe",
            "n",
            "fit, s",
            "against the article",
            "test accuracy, %",
            "median",
            "peak memory, GB",
            "target",
            "reached",
        ],
        rows,
    )
    return reached


if __name__ == "__main__":
    main()
