"""What `dvc.lock` says of the files of a checkout: which belong together."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tenfold import paths
from tenfold.params import Params, flatten

LOCK = Path("dvc.lock")


def confirms(root: Path, stage: str, params: Params) -> bool:
    """Whether a stage was run, with these settings, and its files are there, those that it read and wrote."""
    entry = _stages(root).get(stage)
    return bool(
        entry
        and all((root / item["path"]).exists() for item in entry["outs"])
        and mismatch(root, stage, params) is None
    )


def _stages(root: Path) -> dict[str, Any]:
    if not (root / LOCK).is_file():
        return {}
    stages: dict[str, Any] = YAML(typ="safe", pure=True).load((root / LOCK).read_text(encoding="utf-8"))["stages"]
    return stages


def mismatch(root: Path, stage: str, params: Params) -> str | None:
    """How the checkout differs from what `dvc.lock` says of a stage, if it does and anything is said."""
    stages = _stages(root)
    entry = stages.get(stage, {})
    settings = params.flat()
    for key, value in flatten(entry.get("params", {}).get(paths.PARAMS.name, {})):
        if key in settings and settings[key] != value:
            return f"{paths.PARAMS}: {key} is {settings[key]!r}, but stage {stage} was run with {value!r}"
    made = {out["path"]: out.get("md5") for other in stages.values() for out in other.get("outs", [])}
    whole = (root / ".dvc").is_dir()  # a copy of `FILES` lacks some of the split
    for item in entry.get("deps", []) + entry.get("outs", []):
        path, known = Path(item["path"]), item.get("md5")
        is_product = path.parts[0] in {"data", "models", "reports"} and (root / path).exists()
        checked = is_product and (whole or (root / path).is_file())
        if made.get(item["path"], known) != known or (checked and md5(root / path) != known):
            return f"{path}: is not the one that stage {stage} knows"
    return None


def md5(path: Path) -> str:
    """The hash of a file or a folder, as DVC takes it."""
    if path.is_dir():
        files = sorted((file.relative_to(path).as_posix(), file) for file in path.rglob("*") if file.is_file())
        listed = json.dumps([{"md5": md5(file), "relpath": name} for name, file in files], sort_keys=True)
        return f"{hashlib.md5(listed.encode(), usedforsecurity=False).hexdigest()}.dir"
    with path.open("rb") as content:
        return hashlib.file_digest(content, "md5").hexdigest()
