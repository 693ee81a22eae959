"""Where a result comes from: the tags that say which code, settings, packages and machine made it."""

from __future__ import annotations

import contextlib
import difflib
import getpass
import hashlib
import io
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from tenfold import paths, processes

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
DIRTY = "mlflow.source.git.dirty"
PRECISION = "tenfold.precision"
"""Tag: the precision that `train.precision: auto` came to; only the stage knows it."""
PROCESS = "tenfold.process"
"""Tag: host, number and start of the process that fills the run."""
NO_PRODUCTS = ("--", ".", ":!dvc.lock", ":!reports")
"""For git: what the pipeline itself writes makes no tree dirty."""
LONGEST_DIFF = 1_000_000
"""Of the changes that are kept with a run, in characters."""


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
        dirty = bool(_git(root, "status", "--porcelain", "--untracked-files=normal", *NO_PRODUCTS))
        tags[DIRTY] = str(dirty).lower()
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


def changes(root: Path) -> str:
    """What differs from the commit: `git status`, and the diff, cut if it is very long; empty for a clean tree.

    New files that git does not ignore are in it too, binary ones by name only.
    """
    diff = _git(root, "diff", "HEAD", "--no-color", "--no-ext-diff", *NO_PRODUCTS)
    names = _git(root, "ls-files", "-z", "--others", "--exclude-standard", *NO_PRODUCTS)
    if not diff and not names:
        return ""
    text = f"{_git(root, 'status', '--short')}\n\n{diff}\n"
    for name in filter(None, names.split("\0")):
        if len(text) > LONGEST_DIFF:
            break
        text += _new_file(root, name)
    return text if len(text) <= LONGEST_DIFF else f"{text[:LONGEST_DIFF]}\n… (cut at {LONGEST_DIFF:,} characters)\n"


def _new_file(root: Path, name: str) -> str:
    """A file that git does not know, as `git diff` shows one; of a large one, its beginning."""
    path, head, content = root / name, f"diff --git a/{name} b/{name}\nnew file mode 100644\n", b"\0"
    if path.is_file() and not path.is_symlink():  # but a folder with a repository of its own, say
        with contextlib.suppress(OSError), path.open("rb") as file:
            content = file.read(LONGEST_DIFF)
    if b"\0" in content:
        return f"{head}Binary files /dev/null and b/{name} differ\n"
    lines = [line.removesuffix("\n") for line in io.StringIO(content.decode(errors="replace"), newline="\n")]
    diff = difflib.unified_diff([], lines, "/dev/null", f"b/{name}", lineterm="")
    return head + "".join(f"{line}\n" for line in diff)


def process(run_id: str = "") -> str:
    """The process that fills a run, as a tag: this one, or the `mlflow run` that made the run for it."""
    owner = psutil.Process()
    with contextlib.suppress(psutil.Error):  # of other users' processes the environment is hidden
        while run_id and owner.environ().get("MLFLOW_RUN_ID") == run_id and (parent := owner.parent()):
            owner = parent
    return processes.describe(owner)


def _git(root: Path, *arguments: str) -> str:
    """What git answers, or nothing where there is no git or no commit."""
    try:
        return subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, errors="replace", check=True, timeout=30
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
