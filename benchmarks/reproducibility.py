"""`dvc repro --force` leaves `dvc.lock` as it was, and another seed does not: the whole pipeline, on full MNIST.

python benchmarks/reproducibility.py [--dataset mnist|digits]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from typing import Any

import torch
from ruamel.yaml import YAML

import lab
from lab import Checkout, commit


def outs(checkout: Checkout) -> dict[str, str]:
    """Path to MD5 of every out in `dvc.lock`."""
    stages: dict[str, Any] = YAML(typ="safe").load(checkout.read("dvc.lock"))["stages"]
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", [])}


def main() -> None:
    """Print a table, and end with status 1 where something is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=["digits", "mnist"], default="mnist")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    with lab.checkout() as checkout:
        checkout.edit("dataset: mnist", f"dataset: {options.dataset}")
        commit(checkout, "Settings")
        threads = torch.get_num_threads()
        print(f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}")
        print(f"{options.dataset}, shipped settings, n = 1 each\n{'':<28} {'time':>8}  dvc.lock", flush=True)

        def repro(title: str, *arguments: str) -> str:
            started = time.monotonic()
            checkout.run("dvc", "repro", *arguments)
            print(f"{title:<28} {time.monotonic() - started:6.0f} s  ", end="")
            return checkout.read("dvc.lock")

        lock, first = repro("dvc repro"), outs(checkout)
        print("written", flush=True)
        again = repro("dvc repro --force", "--force") == lock
        print("byte for byte as it was" if again else "OTHER", flush=True)
        checkout.edit(r"^seed: .*", "seed: 43")
        repro("dvc repro, seed 43")
        second = outs(checkout)
        changed = sorted(path for path in first if first[path] != second[path])
        print("other outs: " + ", ".join(changed))
    sys.exit(not again or "models/best.ckpt" not in changed)


if __name__ == "__main__":
    main()
