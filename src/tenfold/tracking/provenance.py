"""Where a result comes from: the tags that say which code, settings, packages and machine made it."""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tenfold import paths

PACKAGES = (
    "torch",
    "pytorch-lightning",
    "torchmetrics",
    "numpy",
    "scikit-learn",
    "onnx",
    "onnxruntime",
    "mlflow",
    "dvc",
)

PARAMS = "tenfold.params_sha256"
"""Tag: the hash of `params.yaml`."""


def source_tags(root: Path) -> dict[str, str]:
    """Which code and settings, under MLflow's own names where it has them."""
    tags = {
        "mlflow.user": _user(),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": " ".join(["tenfold", *sys.argv[1:2]]),
        "tenfold.dvc_experiment": os.environ.get("DVC_EXP_NAME", ""),
        PARAMS: hashlib.sha256((root / paths.PARAMS).read_bytes()).hexdigest(),
    }
    if commit := _git(root, "rev-parse", "HEAD"):
        tags["mlflow.source.git.commit"] = commit
        dirty = bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
        tags["mlflow.source.git.dirty"] = str(dirty).lower()
    return {name: value for name, value in tags.items() if value}


def machine_tags() -> dict[str, str]:
    """Which packages and machine. No package is imported for it."""
    torch = sys.modules.get("torch")
    tags = {
        "tenfold.packages": f"python {platform.python_version()}, " + ", ".join(filter(None, map(_version, PACKAGES))),
        "tenfold.host": platform.node(),
        "tenfold.processor": _processor(),
    }
    return tags | {"tenfold.threads": str(torch.get_num_threads())} if torch else tags


def _git(root: Path, *arguments: str) -> str:
    """What git answers, or nothing where there is no git or no commit."""
    try:
        return subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a name for the user
        return ""


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    """The processor's name; `platform.processor()` knows only its architecture on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
