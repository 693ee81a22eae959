"""Bring the MLflow store in line with the files of a checkout.

A model's run can be missing: a new clone after `dvc pull`, a lost database, a stage that DVC took from its
cache. It is then replayed from the files, by the same functions that record a training as it happens.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ruamel.yaml import YAML

from tenfold import paths
from tenfold.errors import TenfoldError
from tenfold.params import Params, flatten
from tenfold.tracking import provenance, records, registry, runs, store
from tenfold.tracking.runs import Run

LOCK = Path("dvc.lock")
FILES = (
    *(paths.PARAMS, LOCK, paths.SUMMARY, paths.SPLIT / "test" / "images.npy", paths.TUNE),
    *(paths.BEST_CHECKPOINT, paths.TRAIN_REPORT, paths.METRICS, paths.EVALUATION, paths.ONNX_MODEL),
)
"""What of a checkout `sync` reads: files and folders, of which the later ones may be missing."""
NOTE = "rebuilt from the files; durations, throughput, system metrics and the machine of the training cannot be"


@store.answering()
def run_of(root: Path) -> str:
    """The id of the run of `models/best.ckpt`; it is replayed if there is no such run, and completed if need be.

    Under `mlflow run` it is the outer run, which is filled if the training was not done now.

    Raises:
        TenfoldError: there is no model; or it would be replayed, and its settings are not known.
    """
    found = runs.find_run(runs.file_sha256(root / paths.BEST_CHECKPOINT))
    outer = runs.outer_run()
    complete = found and store.client().get_run(found).data.tags.get(runs.RECORD) == runs.WHOLE
    if found and complete and (outer is None or found == outer.info.run_id):
        return found
    params = _settings(root)
    if found and not outer:
        _replay(found, root, params)
        return found
    title = f"{params.data.dataset} {params.model.network} {params.train.max_epochs} epochs"
    with runs.open_run(runs.TRAINING, title, root=root) as run:
        _replay(run.id, root, params)
    return run.id


@store.answering()
def sync(root: Path, run_id: str | None = None) -> str:
    """Send what earlier processes could not, and add to the run of `models/best.ckpt` what it lacks of the files.

    Calling it again changes nothing. Files of a later stage that do not belong to this checkpoint, as `dvc.lock`
    tells, are left out with a message.

    Args:
        root: a checkout, or a copy of its `FILES`.
        run_id: a run to fill instead (an outer `mlflow run`, say).

    Returns:
        The id of the run.

    Raises:
        TenfoldError: checkpoint and settings do not belong together, or the run is that of another model.
    """
    runs.tidy()
    params = _settings(root)
    run_id = run_id or run_of(root)
    _replay(run_id, root, params)
    if _usable(root, "evaluate", paths.METRICS, params) and _usable(root, "export", paths.ONNX_MODEL, params):
        version = records.record_model(run_id, root, params)
        if registry.DECISION not in version.tags:
            registry.promote(version, params.export)
    return run_id


def _replay(run_id: str, root: Path, params: Params) -> None:
    """Add what a run lacks of tuning, training and evaluation."""
    tags = store.client().get_run(run_id).data.tags
    model = runs.file_sha256(root / paths.BEST_CHECKPOINT)
    if tags.get(runs.MODEL, model) != model:
        raise TenfoldError(f"MLflow run {run_id} is that of another model than {paths.BEST_CHECKPOINT}")
    _replay_tuning(root, params)
    if runs.MODEL not in tags or not records.holds(run_id, "checkpoint"):
        store.set_tags(run_id, _replayed(root))
    records.record_training(Run(run_id), root, params)
    if _usable(root, "evaluate", paths.METRICS, params):
        records.record_evaluation(run_id, root)


def _replay_tuning(root: Path, params: Params) -> None:
    """Make the run of the tune stage, if something was searched for and there is none."""
    found = json.loads((root / paths.TUNE_RESULT).read_text(encoding="utf-8"))
    run_id = runs.find_tune_run(runs.file_sha256(root / paths.TUNE_RESULT))
    if all(value["source"] == "params" for value in found.values()) or (run_id and records.holds(run_id, "tune")):
        return
    if run_id:
        records.record_tuning(Run(run_id), root, params)
        return
    with runs.open_run(runs.TUNING, f"{params.data.dataset} {params.model.network}", root=root) as run:
        run.tag(_replayed(root))
        records.record_tuning(run, root, params)


def _replayed(root: Path) -> dict[str, str]:
    return {runs.REPLAYED: NOTE, provenance.PARAMS: runs.file_sha256(root / paths.PARAMS)}


def _settings(root: Path) -> Params:
    """The settings in `params.yaml`, if they are those that the checkpoint was trained with.

    Raises:
        TenfoldError: `dvc.lock` says otherwise.
    """
    params = Params.load(root / paths.PARAMS)
    if problem := _mismatch(root, "train", params):
        raise TenfoldError(f"{problem}. Run dvc repro, or restore what it was: git checkout, dvc checkout")
    return params


def _usable(root: Path, stage: str, out: Path, params: Params) -> bool:
    """Whether a stage's outs are there and belong to the checkpoint."""
    if not (root / out).is_file():
        return False
    if problem := _mismatch(root, stage, params):
        print(f"sync: nothing of the {stage} stage is recorded: {problem}. Run dvc repro")
        return False
    return True


def _mismatch(root: Path, stage: str, params: Params) -> str | None:
    """How the checkout differs from what `dvc.lock` says of a stage, if it does and anything is said."""
    if not (root / LOCK).is_file():
        return None
    stages = YAML(typ="safe", pure=True).load((root / LOCK).read_text(encoding="utf-8"))["stages"]
    entry = stages.get(stage, {})
    settings = params.flat()
    for key, value in flatten(entry.get("params", {}).get(paths.PARAMS.name, {})):
        if key in settings and settings[key] != value:
            return f"{paths.PARAMS}: {key} is {settings[key]!r}, but stage {stage} was run with {value!r}"
    made = {out["path"]: out.get("md5") for other in stages.values() for out in other.get("outs", [])}
    for item in entry.get("deps", []) + entry.get("outs", []):
        file, md5 = Path(item["path"]), item.get("md5")
        is_product = file.parts[0] in {"models", "reports"} and (root / file).is_file()
        if made.get(item["path"], md5) != md5 or (is_product and _md5(root / file) != md5):
            return f"{file}: is not the one that stage {stage} knows"
    return None


def _md5(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "md5").hexdigest()
