"""Bring the MLflow store in line with the files of a checkout.

A model's run can be missing: a new clone after `dvc pull`, a lost database, a stage that DVC took from its
cache. It is then replayed from the files, by the same functions that record a training as it happens.
"""

from __future__ import annotations

import json
from pathlib import Path

from tenfold import paths
from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.tracking import cards, lock, provenance, records, registry, runs, store
from tenfold.tracking.runs import Run

FILES = (
    *(paths.PARAMS, lock.LOCK, paths.SUMMARY, paths.SPLIT / "test" / "images.npy", paths.TUNE),
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
    with runs.open_run(runs.TRAINING, _name(root, params), root=root) as run:
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
        else:
            registry.describe(version.name, str(version.version))
    runs.end_abandoned(run_id)
    return run_id


def _replay(run_id: str, root: Path, params: Params) -> None:
    """Add what a run lacks of tuning, training and evaluation."""
    run = store.client().get_run(run_id)
    runs.name_if_made_up(run, _name(root, params))
    tags = run.data.tags
    model = runs.file_sha256(root / paths.BEST_CHECKPOINT)
    if tags.get(runs.MODEL, model) != model:
        raise TenfoldError(f"MLflow run {run_id} is that of another model than {paths.BEST_CHECKPOINT}")
    _replay_tuning(root, params)
    recorded_live = provenance.PRECISION in tags  # only the stage itself knows it
    if not recorded_live and not (
        runs.MODEL in tags and records.holds(run_id, "checkpoint", root / paths.BEST_CHECKPOINT)
    ):
        store.set_tags(run_id, _replayed(root))
    records.record_training(Run(run_id), root, params)
    if _usable(root, "evaluate", paths.METRICS, params):
        records.record_evaluation(run_id, root)


def _name(root: Path, params: Params) -> str:
    return cards.run_name(params.with_tuned(records.tuned(root)))


def _replay_tuning(root: Path, params: Params) -> None:
    """Make the run of the tune stage, if something was searched for and there is none."""
    found = json.loads((root / paths.TUNE_RESULT).read_text(encoding="utf-8"))
    if all(value["source"] == "params" for value in found.values()):
        return
    if run_id := runs.find_tune_run(records.tune_sha256(root)):
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
    if problem := lock.mismatch(root, "train", params):
        raise TenfoldError(f"{problem}. Run dvc repro, or restore what it was: git checkout, dvc checkout")
    return params


def _usable(root: Path, stage: str, out: Path, params: Params) -> bool:
    """Whether a stage's outs are there and belong to the checkpoint."""
    if not (root / out).is_file():
        return False
    if problem := lock.mismatch(root, stage, params):
        print(f"sync: nothing of the {stage} stage is recorded: {problem}. Run dvc repro")
        return False
    return True
