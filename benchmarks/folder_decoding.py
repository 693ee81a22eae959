"""How fast a folder of images is read and split, against the limit of the decoder.

Writes MNIST's 60,000 training images as PNG files, and times in turns: Pillow alone decoding them in one process and
in one per core (no scan of the folder, nothing written), and the import and split of this project. All files are in
the page cache. Prints a table.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from tenfold import paths
from tenfold.data import folders, sources
from tenfold.params import Params
from tenfold.stages import download, split

PROJECT = Path(__file__).parents[1]


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="of each, after one that is not counted")
    rounds = parser.parse_args().rounds
    params = Params.load(PROJECT / "params.yaml")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DVC_ROOT"] = str(PROJECT)
        os.chdir(folder)
        images = write_images(Path(folder) / "images")
        data = params.data.model_copy(update={"dataset": "folder", "folder": str(images)})
        files = [str(file) for file in images.rglob("*.png")]
        ways: dict[str, Callable[[], object]] = {
            "Pillow alone, 1 process": lambda: decode(files),
            f"Pillow alone, {folders.cores()} processes": lambda: decode_in_parallel(files),
            "import (stage download)": lambda: download.run(params.model_copy(update={"data": data})),
            "import and split": lambda: import_and_split(params.model_copy(update={"data": data})),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                shutil.rmtree(paths.RAW, ignore_errors=True)
                started = time.perf_counter()
                way()
                if number:
                    seconds[name].append(time.perf_counter() - started)
    print(f"\n{platform.processor() or platform.machine()}, {folders.cores()} cores; {len(files):,} PNG files of 28×28")
    print("\n| what | files/s, median | lowest | highest | n |\n|---|---|---|---|---|")
    for name, values in seconds.items():
        speeds = [len(files) / value for value in values]
        print(
            f"| {name} | {statistics.median(speeds):,.0f} | {min(speeds):,.0f} | {max(speeds):,.0f} | {len(speeds)} |"
        )


def write_images(folder: Path) -> Path:
    """MNIST's training images as files, one folder per class."""
    raw = Path("mnist")
    raw.mkdir()
    sources.obtain("mnist", raw)
    pool = sources.read("mnist", raw).pool
    for number, (image, label) in enumerate(zip(np.asarray(pool.images), pool.labels, strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(folder / str(label) / f"{number:05}.png")
    return folder


def decode(files: list[str]) -> None:
    """Decode files and forget them."""
    for file in files:
        with Image.open(file, formats=("PNG",)) as image:
            image.load()


def decode_in_parallel(files: list[str]) -> None:
    """The same by one process per core."""
    with ProcessPoolExecutor(folders.cores()) as pool:
        list(pool.map(decode, [files[start : start + 500] for start in range(0, len(files), 500)]))


def import_and_split(params: Params) -> None:
    """Both stages, in this process."""
    download.run(params)
    split.run(params)


if __name__ == "__main__":
    main()
