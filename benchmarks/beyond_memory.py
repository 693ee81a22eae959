"""More images than memory: anonymous memory of each stage, and images per second against a set that fits.

Makes a folder of JPEG files whose pixels come to so many gigabytes (by default 20, or a fifth of the free disk),
imports, splits and trains on it with mapped arrays; and trains in turns on a twentieth of it that is read into
memory. Prints a table; ends with status 1 if a stage holds more than 2 GB of anonymous memory, or if the images per
second fall by more than 20 %.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from tenfold.params import Params

PROJECT = Path(__file__).parents[1]
SIDE, CLASSES = 256, 8
BYTES = 3 * SIDE * SIDE
SMALL = 20
"""The set that fits in memory is this many times smaller."""
MOST_ANONYMOUS, MOST_SLOWER = 2e9, 0.2


def main() -> None:
    """Make the images, run the stages, print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, help="of pixels")
    parser.add_argument("--rounds", type=int, default=3, help="trainings of each kind")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where there is room")
    chosen = parser.parse_args()
    size = 1e9 * (chosen.gigabytes or min(20.0, psutil.disk_usage(str(chosen.folder)).free / 5e9))
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        root, count = Path(folder), int(size / BYTES)
        started = time.perf_counter()
        with ProcessPoolExecutor() as pool:
            list(pool.map(make, [root / "images"] * count, range(count), chunksize=500))
        print(f"{count:,} files made in {time.perf_counter() - started:.0f} s", flush=True)
        measure(root, count, chosen.rounds)


def make(folder: Path, number: int) -> None:
    """Write one file: soft colours that differ from class to class, and from image to image."""
    label = number % CLASSES
    small = np.random.default_rng(number).integers(0, 160, (16, 16, 3), np.uint8)
    small[:, label * 2 : label * 2 + 2] += 90
    image = Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    (folder / f"class {label}").mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=80)
    (folder / f"class {label}" / f"{number:07}.jpg").write_bytes(stream.getvalue())


def measure(root: Path, count: int, rounds: int) -> None:
    """Run the stages on all images, and train in turns on all and on few."""
    settings = Params.load(PROJECT / "params.yaml").model_dump()
    settings["data"] |= {"dataset": "folder", "folder": str(root / "images"), "image_size": SIDE, "backend": "mmap"}
    settings["train"] |= {"learning_rate": 0.003, "batch_size": 256, "max_epochs": 1}
    large = prepare(root / "large", settings)
    memory = {stage: run(large, stage)[0] for stage in ("download", "split", "tune")}
    settings["data"]["backend"] = "memory"
    settings["split"]["train_size"] = count // SMALL
    settings["train"]["max_epochs"] = 5
    small = prepare(root / "small", settings)
    (small / "data").mkdir()
    (small / "data/raw").symlink_to(large / "data/raw")
    run(small, "split")
    run(small, "tune")
    shutil.rmtree(large / "data/raw")
    speeds: dict[str, list[float]] = {"mapped": [], "in memory": []}
    for _ in range(rounds):
        peak, speed = run(large, "train")
        memory["train"] = max(memory.get("train", 0), peak)
        speeds["mapped"].append(speed)
        speeds["in memory"].append(run(small, "train")[1])
    memory |= {stage: run(large, stage)[0] for stage in ("evaluate", "export")}
    report(count, memory, speeds)


def prepare(folder: Path, settings: dict[str, object]) -> Path:
    """A project with these settings and a store of its own."""
    from ruamel.yaml import YAML

    folder.mkdir()
    shutil.copy(PROJECT / "dvc.yaml", folder)
    (folder / "src").symlink_to(PROJECT / "src")
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump(settings, file)
    return folder


def run(project: Path, stage: str) -> tuple[float, float]:
    """Run a stage: the most anonymous memory that its processes hold together, and its images per second."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DVC_"))}
    command = [sys.executable, "-m", "tenfold", stage]
    process = subprocess.Popen(command, cwd=project, env=environment | {"PYTHONPATH": str(PROJECT / "src")})
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, anonymous(process.pid))
        time.sleep(0.05)
    if process.returncode:
        sys.exit(f"{stage} ended with status {process.returncode}")
    return peak, images_per_second(project) if stage == "train" else 0.0


def anonymous(pid: int) -> float:
    """RssAnon of a process and its children, in bytes."""
    total = 0
    try:
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            total += 1024 * int(next((line.split()[1] for line in status.splitlines() if "RssAnon" in line), 0))
    except (psutil.Error, OSError):
        pass
    return float(total)


def images_per_second(project: Path) -> float:
    """The median over the epochs of the last training."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tenfold")
    assert experiment
    newest = client.search_runs([experiment.experiment_id], max_results=1)[0].info.run_id
    return statistics.median(point.value for point in client.get_metric_history(newest, "throughput/samples_per_s"))


def report(count: int, memory: dict[str, float], speeds: dict[str, list[float]]) -> None:
    """Print the table, and end with the status that it deserves."""
    print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores, ", end="")
    print(
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB; "
        f"{count:,} images of {SIDE}×{SIDE}×3: {count * BYTES / 1e9:.1f} GB"
    )
    print("\n| stage | most anonymous memory |\n|---|---|")
    for stage, peak in memory.items():
        print(f"| {stage} | {peak / 1e9:.2f} GB |")
    print("\n| training set | images/s, median | n | each |\n|---|---|---|---|")
    for name, values in speeds.items():
        print(
            f"| {name} | {statistics.median(values):,.0f} | {len(values)} | {', '.join(f'{v:,.0f}' for v in values)} |"
        )
    slower = 1 - statistics.median(speeds["mapped"]) / statistics.median(speeds["in memory"])
    print(f"\nMapped images are {slower:.1%} slower.")
    sys.exit(max(memory.values()) > MOST_ANONYMOUS or slower > MOST_SLOWER)


if __name__ == "__main__":
    main()
