"""What a GPU does, within a few minutes: fits in several precisions, compiled, pinned, the finder out of memory.

Needs a CUDA device, the data at hand and the project installed; prints a table. Each fit is a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

import lab
from tenfold.data.summary import Summary
from tenfold.params import Params
from tenfold.training import finders
from tenfold.training.factory import build_classifier
from tenfold.training.tricks import build_data

KINDS = {
    "fp32": {"precision": "32-true"},
    "bf16": {"precision": "bf16-mixed"},
    "bf16, pinned memory off": {"precision": "bf16-mixed", "pin_memory": "false"},
    "bf16, compiled": {"precision": "bf16-mixed", "compile": "true"},
    "fp16": {"precision": "16-mixed"},
}
MEMORY_SHARE = 0.004
"""Of the GPU's memory that the finder may use: small enough that the data set does not end the search first."""


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="fast")
    parser.add_argument("--finder", action="store_true", help="only the finder, in the clone that this is started in")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu.py: there is no CUDA device here")
    if chosen.finder:
        find()
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, recipe {chosen.recipe}", flush=True)
    with lab.checkout(chosen.recipe) as project:
        project.run("dvc", "repro", "split")
        for name, settings in KINDS.items():
            shipped = project.read("params.yaml")
            for key, value in settings.items():
                project.edit(rf"^  {key}: .*", f"  {key}: {value}")
            for attempt in ("first", "again"):  # the first compiles, and fills caches
                for stage in ("tune", "train", "evaluate"):
                    project.tenfold(stage)
                run = project.client().get_run(project.runs("tenfold")[0])
                values = run.data.metrics
                print(
                    f"{name:<26} {attempt:<6} fit {values['time/fit_s']:7.2f} s  "
                    f"{values['throughput/samples_per_s']:10,.0f} images/s  test {values['test/acc']:.2%}  "
                    f"{run.data.tags['tenfold.precision']}",
                    flush=True,
                )
            (project.root / "params.yaml").write_text(shipped, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--finder"],
            cwd=project.root,
            env=lab.clean_environment(),
            check=False,
        )
    sys.exit(done.returncode)


def find() -> None:
    """The largest batch within a small share of the memory, by both methods; the second must not be under the first."""
    torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE)
    params, summary = Params.load(), Summary.load()
    sizes = {}
    for method in ("power", "binsearch"):
        tune = params.tune.batch_size.model_copy(update={"method": method, "min": 16, "max": 1 << 20})
        module, data = build_classifier(params, summary, 0.001), build_data(params, 16)
        sizes[method], rows = finders.find_batch_size(params.train, tune, module, data)
        print(f"largest batch by {method}: {sizes[method]}; tried {[row['batch_size'] for row in rows]}", flush=True)
    assert sizes["binsearch"] >= sizes["power"]


if __name__ == "__main__":
    main()
