"""What the processor can do, what a recipe asks of it, and what training makes of it.

The peak is the best that convolutions of 24 to 128 channels reach here, forward and backward. The work is counted by
torch. Work by peak is the floor under a training in seconds; a table of operators says where the rest of a step goes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import lab
from tenfold import paths
from tenfold.data.datamodule import ImageSet
from tenfold.data.summary import Summary
from tenfold.modeling.optimizers import build_optimizer
from tenfold.params import Params
from tenfold.stages import train as stage
from tenfold.training.allocator import keep_freed_memory
from tenfold.training.factory import build_classifier
from tenfold.training.tricks import effective_precision

CHANNELS = (24, 32, 48, 64, 96, 128)
SIDE, IMAGES = 14, 256
STEPS = 60
OPERATORS = 14


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["fast", "balanced", "best", "low-data"])
    chosen = parser.parse_args()
    keep_freed_memory()
    peaks = {dtype: convolution_peak(dtype) for dtype in (torch.float32, torch.bfloat16)}
    bandwidth = copy_bandwidth()
    rows = []
    for recipe in chosen.recipes:
        with lab.checkout(recipe) as project:
            project.run("dvc", "repro", "tune")
            os.chdir(project.root)
            params = Params.load()
            step, steps = training_step(params)
            flops, seconds = count(step), median_seconds(step, STEPS)
            if recipe == "balanced":
                publish_operators(step)
            os.chdir(lab.PROJECT)
        dtype = torch.bfloat16 if effective_precision(params.train) == "bf16-mixed" else torch.float32
        rows.append(
            [
                recipe,
                steps,
                f"{flops / 1e9:.2f}",
                f"{1e3 * seconds:.2f}",
                f"{steps * flops / peaks[dtype]:.1f}",
                f"{steps * seconds:.1f}",
                f"{flops / seconds / 1e9:.0f}",
                f"{flops / seconds / peaks[dtype]:.0%}",
            ]
        )
    lab.publish(
        "roofline",
        f"`benchmarks/roofline.py`: convolutions of {CHANNELS[0]} to {CHANNELS[-1]} channels, 3×3, on {IMAGES} images "
        f"of {SIDE}×{SIDE}, forward and backward, reach at most {peaks[torch.float32] / 1e9:.0f} GFLOP/s in fp32 and "
        f"{peaks[torch.bfloat16] / 1e9:.0f} in bf16; copying reaches {bandwidth / 1e9:.0f} GB/s. A step is the bare "
        f"one: batch, augmentation, forward, backward, optimizer (medians of {STEPS}).",
        [
            "recipe",
            "steps",
            "GFLOP a step",
            "ms a step",
            "floor, s",
            "all steps, s",
            "GFLOP/s",
            "share of the peak",
        ],
        rows,
    )


def convolution_peak(dtype: torch.dtype) -> float:
    """The highest FLOP/s of a 3×3 convolution with as many channels out as in, forward and backward."""
    best = 0.0
    for channels in CHANNELS:
        layer = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False, dtype=dtype)
        layer.to(memory_format=torch.channels_last)
        images = torch.randn(IMAGES, channels, SIDE, SIDE, dtype=dtype).to(memory_format=torch.channels_last)
        images.requires_grad_()
        gradient = torch.randn_like(images)
        seconds = median_seconds(lambda: layer(images).backward(gradient), 10)  # noqa: B023
        best = max(best, 3 * 2 * images.numel() * channels * 9 / seconds)
    return best


def copy_bandwidth() -> float:
    """Bytes per second read and written by a copy that no cache holds."""
    source = torch.zeros(1 << 26)
    target = torch.zeros_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), 10)


def training_step(params: Params) -> tuple[Callable[[], Any], int]:
    """One bare step of a recipe, again and again on the same batch, and how many its training has."""
    train = stage.tuned(params).train
    rate, size = float(train.learning_rate), int(train.batch_size)
    data = ImageSet(paths.SPLIT / "train")
    network = build_classifier(params, Summary.load(), 0.0).network.train()
    optimizer = build_optimizer(network.parameters(), rate, train.optimizer)
    positions = torch.randperm(len(data))[:size]
    return (
        lambda: lab.bare_step(train, network, optimizer, *data[positions]),
        train.max_epochs * (len(data) // size),
    )


def count(step: Callable[[], Any]) -> int:
    """Floating-point operations of the convolutions and products of a step, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def median_seconds(work: Callable[[], Any], rounds: int) -> float:
    """Median of `rounds`, after three that warm up."""
    seconds = []
    for _ in range(rounds + 3):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return sorted(seconds[3:])[rounds // 2]


def publish_operators(step: Callable[[], Any]) -> None:
    """The operators of a step by the time that they take themselves."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            step()
    averages = sorted(profiled.key_averages(), key=lambda one: -one.self_cpu_time_total)
    whole = sum(one.self_cpu_time_total for one in averages)
    rows = [
        [
            f"`{one.key}`",
            f"{one.count / STEPS:.0f}",
            f"{one.self_cpu_time_total / STEPS / 1e3:.2f}",
            f"{one.self_cpu_time_total / whole:.1%}",
        ]
        for one in averages[:OPERATORS]
    ]
    rest = sum(one.self_cpu_time_total for one in averages[OPERATORS:])
    rows.append(["all others", "", f"{rest / STEPS / 1e3:.2f}", f"{rest / whole:.1%}"])
    lab.publish(
        "operators",
        f"`benchmarks/roofline.py`: a step of `balanced` by operator, mean of {STEPS}, as torch's profiler sees it.",
        ["operator", "calls a step", "ms a step", "share"],
        rows,
    )


if __name__ == "__main__":
    main()
