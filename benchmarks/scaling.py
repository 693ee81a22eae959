"""How training scales: measured with one and two processes here, and modelled for devices that are not here."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import lab
from lab import Checkout

ONE, APART = "1 process", "2 processes, apart"
DEVICES = (1, 2, 8, 64, 512, 4096)
PER_HOST = 8


@dataclass(frozen=True)
class Link:
    """A link between devices: bytes per second in one direction, and seconds of latency of a message."""

    bandwidth: float
    latency: float


INSIDE, BETWEEN = Link(300e9, 3e-6), Link(50e9, 10e-6)
"""Assumed: NVLink within a host, 400 Gbit/s per device between hosts."""


def main() -> None:
    """Measure, and publish both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="fits of each kind, in turns")
    chosen = parser.parse_args()
    with lab.checkout("balanced") as project, lab.checkout("balanced") as other:
        for one_of_them in (project, other):
            prepare(one_of_them)
        ways: dict[str, Callable[[], float]] = {
            ONE: lambda: throughput(project, 1, "auto"),
            "1 process, 2 threads": lambda: throughput(project, 1, "auto", threads=2),
            APART: lambda: apart([project, other]),
            "2 processes, DDP": lambda: throughput(project, 2, "ddp"),
            "2 processes, sharded": lambda: throughput(project, 2, "sharded"),
        }
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(chosen.rounds):
            for name, measure in ways.items():
                speeds[name].append(measure())
                print(f"{name}: {speeds[name][-1]:,.0f} images/s", flush=True)
    one, without = (statistics.median(speeds[name]) for name in (ONE, APART))
    rows = []
    for name, values in speeds.items():
        found = statistics.median(values)
        together = name.startswith("2") and name != APART
        share = f"{1 - found / without:.0%}" if together else ""
        rows.append([name, lab.spread(values, 0), f"×{found / one:.2f}", share])
    lab.publish(
        "scaling",
        f"`benchmarks/scaling.py`: `balanced` on 20,000 images, batches of 128 per process, one thread per process "
        f"where nothing else is said, {chosen.rounds} fits of each in turns; images per second, median "
        "(lowest–highest). Communication is what is missing to two trainings at once that know nothing of each other.",
        ["", "images/s", "against one process", "communication"],
        rows,
        page=lab.PROJECT / "docs/scaling.md",
    )
    step = 128 / one
    rows = [
        [
            f"{parameters:,.0f}",
            f"{seconds * 1e3:,.2f} ms",
            kind,
            *(f"{efficiency(count, seconds, 4 * parameters, kind):.0%}" for count in DEVICES),
        ]
        for parameters, seconds in ((61_162, step), (61_162, step / 100), (25e6, 0.1), (7e9, 1.0))
        for kind in ("DDP", "sharded")
    ]
    lab.publish(
        "model",
        "The formulas above, with gradients of 4 bytes per parameter. The first step time is measured here, the second "
        "is that of a device a hundred times as fast; the other two are a ResNet-50 and a network of 7 billion.",
        ["parameters", "step", "", *(f"{count:,}" for count in DEVICES)],
        rows,
        page=lab.PROJECT / "docs/scaling.md",
    )


def prepare(project: Checkout) -> None:
    """Set up and tune a clone."""
    project.edit("train_size: all", "train_size: 20000")
    project.edit("max_epochs: 4", "max_epochs: 2")
    project.edit("learning_rate: auto", "learning_rate: 0.01")
    project.edit("batch_size: auto", "batch_size: 128")
    project.run("dvc", "repro", "tune")


def apart(projects: Sequence[Checkout]) -> float:
    """Images per second of trainings that run side by side, all together."""
    with ThreadPoolExecutor(len(projects)) as pool:
        return sum(pool.map(lambda project: throughput(project, 1, "auto"), projects))


def throughput(project: Checkout, devices: int, strategy: str, threads: int = 1) -> float:
    """Images per second of the last epoch of a fit."""
    for key, value in {"devices": str(devices), "strategy": strategy}.items():
        project.edit(rf"^  {key}: .*", f"  {key}: {value}")
    project.tenfold("train", OMP_NUM_THREADS=str(threads))
    run = project.client().get_run(project.runs("tenfold")[0])
    return float(run.data.metrics["throughput/samples_per_s"])


def ring(count: int, size: float, link: Link) -> float:
    """Seconds of a ring that gathers, or reduces and scatters, `size` bytes among `count` devices."""
    return (count - 1) * (size / count / link.bandwidth + link.latency)


def communication(count: int, size: float, rounds: int) -> float:
    """Seconds of `rounds` rings of `size` bytes: within each host, then between hosts, of a device's share each."""
    inside = min(count, PER_HOST)
    hosts = max(1, count // PER_HOST)
    return rounds * (ring(inside, size, INSIDE) + ring(hosts, size / inside, BETWEEN))


def efficiency(count: int, step: float, size: float, kind: str) -> float:
    """Share of a step that is not waiting: the backward pass, two thirds of it, hides as much communication."""
    rounds = 2 if kind == "DDP" else 3
    waiting = max(0.0, communication(count, size, rounds) - step * 2 / 3)
    return step / (step + waiting)


if __name__ == "__main__":
    main()
