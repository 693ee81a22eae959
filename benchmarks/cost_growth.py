"""How the seconds of a fit grow with samples, image size, width and epochs: a plot, docs/cost_growth.png.

Each line changes one of the four; the rest is `balanced` with 10,000 images and one epoch.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F

import lab
from tenfold import paths
from tenfold.data.summary import Summary
from tenfold.params import Params
from tenfold.report import figures
from tenfold.stages import train as stage

SAMPLES, SIDE, WIDTH, EPOCHS = 10_000, 28, 16, 1
POINTS = {
    "samples": (2_500, 5_000, 10_000, 20_000, 40_000),
    "image side, pixels": (14, 28, 56, 112),
    "width": (8, 16, 32, 64),
    "epochs": (1, 2, 4, 8),
}
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
PICTURE = lab.PROJECT / "docs/cost_growth.png"


def main() -> None:
    """Measure, draw, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="fits of each point")
    rounds = parser.parse_args().rounds
    with lab.checkout("balanced") as project:
        project.run("dvc", "repro", "tune")
        os.chdir(project.root)
        whole = np.load(paths.SPLIT / "train/images.npy"), np.load(paths.SPLIT / "train/labels.npy")
        measure: dict[str, Callable[[int], float]] = {
            "samples": lambda value: fit_seconds(whole, samples=value),
            "image side, pixels": lambda value: fit_seconds(whole, side=value),
            "width": lambda value: fit_seconds(whole, width=value),
            "epochs": lambda value: fit_seconds(whole, epochs=value),
        }
        fit_seconds(whole)  # warms up
        found: dict[str, dict[int, list[float]]] = {axis: {value: [] for value in POINTS[axis]} for axis in POINTS}
        for _ in range(rounds):
            for axis, values in found.items():
                for value, seconds in values.items():
                    seconds.append(measure[axis](value))
        os.chdir(lab.PROJECT)
    draw(found)
    lab.publish(
        "cost_growth",
        f"`benchmarks/cost_growth.py`: seconds of fit under Lightning, {rounds} of each in turns, median "
        f"(lowest–highest). The rest is {SAMPLES:,} samples of {SIDE}×{SIDE}, width {WIDTH}, {EPOCHS} epoch.",
        ["what changes", "to", "fit, s"],
        [[axis, f"{value:,}", lab.spread(s)] for axis, values in found.items() for value, s in values.items()],
        "![How the seconds of a fit grow](cost_growth.png)",
    )


def fit_seconds(
    whole: tuple[np.ndarray, np.ndarray],
    samples: int = SAMPLES,
    side: int = SIDE,
    width: int = WIDTH,
    epochs: int = EPOCHS,
) -> float:
    """Seconds of the train stage's fit on some of the images, brought to another size."""
    images = torch.from_numpy(whole[0][:samples])
    if side != SIDE:
        images = F.interpolate(images.float(), size=(side, side), mode="bilinear").round().to(torch.uint8)
    for part, count in (("train", samples), ("val", 1000)):
        np.save(paths.SPLIT / part / "images.npy", images[:count].numpy())
        np.save(paths.SPLIT / part / "labels.npy", whole[1][:count])
    Summary.load().model_copy(update={"image_shape": (1, side, side)}).save(paths.SUMMARY)
    params = Params.load()
    params = params.model_copy(
        update={
            "model": params.model.model_copy(update={"width": width}),
            "train": params.train.model_copy(update={"max_epochs": epochs}),
        }
    )
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        started = time.perf_counter()
        stage.fit(params, Path(folder))
        return time.perf_counter() - started


def draw(found: dict[str, dict[int, list[float]]]) -> None:
    """One area per axis, both scales logarithmic; a dashed line grows in proportion."""
    with figures.style():
        figure, areas = plt.subplots(1, len(found), figsize=(13, 3.6), sharey=True)
        for area, (axis, values) in zip(areas, found.items(), strict=True):
            x, y = list(values), [statistics.median(seconds) for seconds in values.values()]
            area.plot(x, y, marker="o", color=figures.BLUE)
            area.plot(x, [y[-1] * value / x[-1] for value in x], "--", color=figures.FAINT, linewidth=1)
            area.set(xscale="log", yscale="log", xlabel=axis)
            area.set_xticks(x, [f"{value / 1000:g}k" if value >= 1000 else str(value) for value in x])
            area.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
            area.minorticks_off()
        areas[0].set_ylabel("seconds of fit")
        figure.savefig(PICTURE)
        plt.close(figure)


if __name__ == "__main__":
    main()
