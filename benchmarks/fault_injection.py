"""Kills the train stage (SIGKILL) at random moments, each time in a new training, and repeats `dvc repro`.

Each time the weights must be those of the uninterrupted training, and there must be exactly one new run.
    python benchmarks/fault_injection.py --kills 20 --dataset digits
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch

import lab
from lab import Checkout, clean_environment, commit

REPRO = ("dvc", "repro", "--single-item", "train")
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Outcome:
    """What became of a training that was killed."""

    killed: str
    """When: the last line that it had printed."""
    resumed: str
    """What the repeat said that it goes on after; empty: it began anew."""
    weights: str
    """SHA-256 of `models/best.ckpt` in the end."""
    new_runs: int


class Started:
    """A command that runs in a checkout, in a process group of its own, with its output in a file."""

    def __init__(self, checkout: Checkout, *command: str, **environment: str) -> None:
        self.log = checkout.root.parent / f"{time.monotonic_ns()}.log"
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                # a shell has what it starts in the background ignore Ctrl+C, and so all that that starts
                ["env", "--default-signal=INT", *command],
                cwd=checkout.root,
                env=clean_environment() | environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, seconds: float = PATIENCE_S) -> None:
        """Until it has printed that."""
        deadline = time.monotonic() + seconds
        while text not in self.output():
            assert self.process.poll() is None, f"it ended without {text!r}:\n{self.output()}"
            assert time.monotonic() < deadline, f"{text!r} does not come:\n{self.output()}"
            time.sleep(0.02)

    def stage(self) -> psutil.Process | None:
        """The process of the train stage; None when it has not begun or has ended."""
        try:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                if child.cmdline()[1:] == ["-m", "tenfold", "train"]:
                    return child
        except psutil.Error:
            pass
        return None

    def wait_for_stage(self) -> psutil.Process:
        """The process of the train stage, once it is there."""
        while not (found := self.stage()):
            assert self.process.poll() is None, self.output()
            time.sleep(0.02)
        return found


def sha256(checkout: Checkout) -> str:
    """Of the weights."""
    return hashlib.sha256((checkout.root / "models/best.ckpt").read_bytes()).hexdigest()


@contextmanager
def untrained(checkout: Checkout) -> Iterator[None]:
    """In the block, DVC has no outs of an earlier, equal training to take."""
    cache, aside = checkout.root / ".dvc/cache", checkout.root / ".dvc/cache.aside"
    cache.rename(aside)
    (checkout.root / "models/best.ckpt").unlink(missing_ok=True)
    try:
        yield
    finally:
        shutil.rmtree(cache, ignore_errors=True)
        aside.rename(cache)


def strike(checkout: Checkout, line: str, delay: float) -> Outcome:
    """Train, kill the stage so many seconds after it has printed a line (empty: has begun), and repeat."""
    before = set(checkout.runs("tenfold"))
    started = Started(checkout, *REPRO)
    stage = started.wait_for_stage()
    started.wait_for(line)
    try:
        stage.wait(delay)
        killed = "not: it had ended"
    except psutil.TimeoutExpired:
        stage.kill()
        lines = [line for line in started.output().splitlines() if line.startswith("train: epoch")]
        killed = f"after {' '.join(lines[-1].split()[1:3])}" if lines else "before epoch 1 was done"
    started.process.wait(PATIENCE_S)
    resumed = re.search("resuming after (.*)", checkout.run(*REPRO))
    new = set(checkout.runs("tenfold")) - before
    return Outcome(killed, resumed[1] if resumed else "", sha256(checkout), len(new))


def milestones(checkout: Checkout) -> list[tuple[str, float]]:
    """What an uninterrupted stage prints at the end of each epoch, after its beginning (empty), and when, in seconds.

    The last one is its end.
    """
    started = Started(checkout, *REPRO)
    stage = started.wait_for_stage()
    begun, seen = time.monotonic(), [("", 0.0)]
    while stage.is_running() and stage.status() != psutil.STATUS_ZOMBIE:
        lines = re.findall("train: (epoch .*?) ", started.output())
        seen += [(line, time.monotonic() - begun) for line in lines[len(seen) - 1 :]]
        time.sleep(0.02)
    started.process.wait(PATIENCE_S)
    return [*seen, ("", time.monotonic() - begun)]


def main() -> None:
    """Print a table, and end with status 1 where an outcome is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--dataset", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    with lab.checkout() as checkout:
        checkout.edit("dataset: mnist", f"dataset: {options.dataset}")
        commit(checkout, "Settings")
        checkout.run("dvc", "repro", "train")
        with untrained(checkout):
            marks = milestones(checkout)
        expected = sha256(checkout)
        threads = torch.get_num_threads()
        print(f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}")
        print(f"{options.dataset}, shipped settings, n = {options.kills} kills (SIGKILL), seed {options.seed}")
        print(f"The uninterrupted stage takes {marks[-1][1]:.1f} s and gives {expected[:16]}…")
        print(f"{'':>4}  {'killed':<24} {'resumed after':<14} {'weights':<9} {'new runs':>8}", flush=True)
        draw = random.Random(options.seed)
        wrong = 0
        for number in range(1, options.kills + 1):
            part = draw.randrange(len(marks) - 1)  # start-up, an epoch or the end, whatever their length
            delay = draw.random() * (marks[part + 1][1] - marks[part][1])
            with untrained(checkout):
                outcome = strike(checkout, marks[part][0], delay)
            same = outcome.weights == expected
            wrong += not same or outcome.new_runs != 1
            print(
                f"{number:>4}  {outcome.killed:<24} {outcome.resumed or '-':<14} "
                f"{'the same' if same else 'OTHER':<9} {outcome.new_runs:>8}",
                flush=True,
            )
        print(f"{options.kills - wrong} of {options.kills} ended with the same weights and exactly one new run")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
