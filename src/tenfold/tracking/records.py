"""What goes on the run of a model: each function takes it from the files of a checkout.

The stages call them as the files come into being; `sync` calls them again for a store that lacks some. So
there is one way in, and calling twice doubles nothing. On a run without an id (`runs.Run`) they do nothing.
"""

from __future__ import annotations

import csv
import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold import paths
from tenfold.data.summary import PARTS, Summary
from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.serving import packaging
from tenfold.tracking import cards, lock, provenance, registry, runs, store
from tenfold.tracking.journal import now_ms
from tenfold.tracking.runs import Run

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Metric
    from mlflow.entities.model_registry import ModelVersion
    from optuna.trial import FrozenTrial

PARAMS_PER_BATCH, LONGEST_PARAM = 100, 6000
"""MLflow's limits (of a value, in characters)."""
DIGEST_CHARACTERS = 32
"""Of a data set's hash, as its digest in MLflow, which takes no more than 36."""


@runs.tolerant_of()
def record_inputs(run: Run, root: Path, params: Params) -> None:
    """Log every setting under its dotted name, and train, val and test as the run's inputs, known by their hashes.

    A setting that is too long for MLflow goes to `settings/` as well. Settings that the run has already are left, since
    MLflow refuses to change one.
    """
    log_params(run.id, params.flat())
    _log_dataset(run.id, root)


def log_params(run_id: str, values: Mapping[str, Any]) -> None:
    """Log settings by name, those that the run lacks: text as it is, all else as JSON."""
    from mlflow.entities import Param

    client = store.client()
    there = client.get_run(run_id).data.params
    missing = []
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if name in there:
            continue
        if len(text) > LONGEST_PARAM:
            client.log_text(run_id, text, f"settings/{name}.txt")
            text = text[: LONGEST_PARAM - 1] + "…"
        missing.append(Param(name, text))
    for start in range(0, len(missing), PARAMS_PER_BATCH):
        client.log_batch(run_id, params=missing[start : start + PARAMS_PER_BATCH])


def _log_dataset(run_id: str, root: Path) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    summary = Summary.load(root / paths.SUMMARY)
    shape = [-1, *summary.image_shape]
    schema = {"features": _tensors("uint8", shape), "targets": _tensors("int64", [-1])}
    inputs = []
    for part in PARTS:
        profile = {
            "images": summary.counts[part],
            "per_class": dict(zip(summary.classes, summary.per_class[part], strict=True)),
            "duplicates": summary.duplicates.model_dump(),
            "sha256": summary.sha256[part],
        }
        dataset = Dataset(
            name=summary.dataset,
            digest=summary.sha256[part][:DIGEST_CHARACTERS],
            source_type="local",
            source=json.dumps({"uri": (paths.SPLIT / part).as_posix()}),
            schema=json.dumps({"mlflow_tensorspec": schema}),
            profile=json.dumps(profile),
        )
        inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", part)]))
    store.client().log_inputs(run_id, inputs)


def _tensors(dtype: str, shape: list[int]) -> str:
    return json.dumps([{"type": "tensor", "tensor-spec": {"dtype": dtype, "shape": shape}}])


def record_tuning(run: Run, root: Path, params: Params) -> None:
    """Fill the run of the tune stage, and make it known by the hash of what it wrote."""
    _record_stage(run, root, params, {runs.TUNE: tune_sha256(root)}, {"tune": paths.TUNE})


@runs.tolerant_of()
def record_trial(run: Run, trial: FrozenTrial) -> None:
    """A child run for a trial of a search: its settings, its validations and how it ended."""
    from mlflow.entities import Metric
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

    client = store.client()
    parent = client.get_run(run.id)
    child = client.create_run(
        parent.info.experiment_id,
        tags={MLFLOW_PARENT_RUN_ID: run.id, provenance.PROCESS: provenance.process()},
        run_name=f"trial {trial.number}",
    ).info.run_id
    log_params(child, trial.params)
    points = [Metric("val/acc", value, now_ms(), step) for step, value in trial.intermediate_values.items()]
    store.log_points(child, points)
    store.set_tags(child, {"tenfold.trial": trial.state.name.lower()})
    client.set_terminated(child, "FINISHED")


def tune_sha256(root: Path) -> str:
    """The identity of a tuning. Its curves are part of it: two of them may find the same rate."""
    return _files_sha256(root, _files(root, paths.TUNE))


def record_training(run: Run, root: Path, params: Params) -> None:
    """Log checkpoint, reports, what tuning found, and what the run lacks of inputs and curves; tag it as the model's.

    Points that are missing (nobody sent them, or a kill came before them) are taken from `history.csv`, with the run's
    start as their time, since the true one is in no DVC out.
    """
    if not run.id:  # on another rank the file may not be there yet
        return
    identity = {runs.MODEL: runs.file_sha256(root / paths.BEST_CHECKPOINT)}
    files = {"checkpoint": paths.BEST_CHECKPOINT, "train": paths.TRAIN_REPORT}
    _record_stage(run, root, params, identity, files)
    if run.journal:
        _take_over(run, root, params)


@runs.tolerant_of()
def _take_over(run: Run, root: Path, params: Params) -> None:
    """Record what is there of an earlier training with the same weights: DVC runs neither evaluate nor export again."""
    model = runs.file_sha256(root / paths.BEST_CHECKPOINT)
    if runs.others(model, run.id) and lock.confirms(root, "evaluate", params):
        record_evaluation(run.id, root)
        if lock.confirms(root, "export", params):
            record_model(run.id, root, params)


@runs.tolerant_of("the checkpoints and the profiler's report beside its outs are lost")
def record_kept(run: Run, folder: Path) -> None:
    """Log what a training leaves beside its outs, and so cannot be replayed: kept checkpoints, a profiler's report."""
    for pattern, place in (("*.ckpt", "checkpoint/kept"), ("*profile*", "profile")):
        for file in sorted(folder.glob(pattern)):
            store.client().log_artifact(run.id, str(file), place)


def _record_stage(run: Run, root: Path, params: Params, identity: dict[str, str], files: Mapping[str, Path]) -> None:
    if run.journal:  # so that the run is found even if nothing else arrives
        run.tag(identity | {runs.RECORD: runs.PARTLY})
    _fill(run, root, params, identity, files)


@runs.tolerant_of()
def _fill(run: Run, root: Path, params: Params, identity: dict[str, str], files: Mapping[str, Path]) -> None:
    client = store.client()
    if runs.MODEL in identity:
        started = client.get_run(run.id).info.start_time
        store.log_points(run.id, _missing_points(run.id, root / paths.HISTORY, started))
        tune_run = runs.find_tune_run(tune_sha256(root))
        identity = identity | ({runs.TUNE_RUN: tune_run} if tune_run else {})
    tags = client.get_run(run.id).data.tags
    whole = all(holds(run.id, folder, root / path) for folder, path in files.items())
    if whole and (identity | {runs.RECORD: runs.WHOLE}).items() <= tags.items():
        return
    log_params(run.id, params.flat() | _tuned(root))
    _log_dataset(run.id, root)
    for folder, path in files.items():
        (client.log_artifacts if path.suffix == "" else client.log_artifact)(run.id, str(root / path), folder)
    run.tag(identity | {runs.RECORD: runs.WHOLE})


def holds(run_id: str, folder: str, path: Path) -> bool:
    """Whether a run's artifacts have a file, or the files of a folder: the database may have survived them."""
    names = {file.name for file in path.iterdir()} if path.is_dir() else {path.name}
    return names <= {Path(item.path).name for item in store.client().list_artifacts(run_id, folder)}


def _tuned(root: Path) -> dict[str, Any]:
    """What `learning_rate: auto` and `batch_size: auto` came to, as settings of their own."""
    return {f"tuned.{name}": value for name, value in tuned(root).items()}


def tuned(root: Path) -> dict[str, Any]:
    """What the tune stage found, or was given."""
    return {name: found["value"] for name, found in _read_json(root / paths.TUNE_RESULT).items()}


def _missing_points(run_id: str, history: Path, time_ms: int) -> list[Metric]:
    from mlflow.entities import Metric

    try:
        with history.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise TenfoldError(f"{history}: cannot be read ({error.strerror}). Make it: dvc repro train") from None
    points = []
    for name in rows[0] if rows else []:
        if name in {"epoch", "step"}:
            continue
        there = {point.step for point in store.client().get_metric_history(run_id, name)}
        if name == "lr" and there:  # while training it is logged every few steps, and not at the ends of epochs
            continue
        # history.csv counts the optimizer steps done; a logger gets the number of the last one, from 0
        steps = {int(row["step"]) - 1: row[name] for row in rows if row[name]}
        points += [Metric(name, float(value), time_ms, at) for at, value in steps.items() if at not in there]
    return points


@store.answering()
def record_evaluation(run_id: str, root: Path) -> None:
    """Log the evaluation on a run, and on other runs of that model that have none: those of equal trainings."""
    model = runs.file_sha256(root / paths.BEST_CHECKPOINT)
    for run in (run_id, *runs.others(model, run_id, without=runs.EVALUATION)):
        _record_evaluation(run, root)
        _write_note(run)


def _write_note(run_id: str) -> None:
    """Say on a run what it is; a note that somebody has edited is left."""
    from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

    run = store.client().get_run(run_id)
    text = cards.note(run)[: store.LONGEST_TAG]
    if mark := cards.mark(text, run.data.tags.get(MLFLOW_RUN_NOTE), run.data.tags):
        store.set_tags(run_id, {MLFLOW_RUN_NOTE: text, cards.WRITTEN: mark})


def _record_evaluation(run_id: str, root: Path) -> None:
    """Log the evaluation's numbers (`test/acc`, `test/ece`, …), pictures and tables.

    `train/loss`, `val/acc` and so on are names of curves too. The numbers of the best checkpoint go one step
    after the end of the curves, and so are what MLflow shows and searches as the run's values.
    """
    from mlflow.entities import Metric

    client = store.client()
    content = _files_sha256(root, [paths.METRICS, *_files(root, paths.EVALUATION)])
    before = client.get_run(run_id).data
    if before.tags.get(runs.EVALUATION) == content and holds(run_id, "evaluate", root / paths.EVALUATION):
        return
    client.log_artifact(run_id, str(root / paths.METRICS), "evaluate")
    client.log_artifacts(run_id, str(root / paths.EVALUATION), "evaluate")
    metrics = _metrics(root)
    extra = _read_json(root / paths.EVALUATION / "summary.json")
    numbers = {
        f"{part}/{name}": float(value)
        for part, values in extra.items()
        if isinstance(values, dict)
        for name, value in values.items()
        if isinstance(value, float)  # not the number of images
    } | metrics
    latest = {point.key: point for point in _latest(run_id, metrics)}
    step, now = 1 + max((point.step for point in latest.values()), default=-1), now_ms()
    curves = {name for name, point in latest.items() if point.step < _steps(root)}  # they have no evaluation yet
    # What an earlier try got through is not sent again.
    new = {name: value for name, value in numbers.items() if name in curves or before.metrics.get(name) != value}
    store.log_points(run_id, [Metric(name, value, now, step) for name, value in new.items()])
    store.set_tags(run_id, {runs.EVALUATION: content})


def _steps(root: Path) -> int:
    """Optimizer steps of the training."""
    with (root / paths.HISTORY).open(newline="", encoding="utf-8") as file:
        return max((int(row["step"]) for row in csv.DictReader(file)), default=0)


def _latest(run_id: str, names: Iterable[str]) -> list[Metric]:
    """Of each metric that the run has, the point with the highest step: the one that MLflow shows."""
    histories = [store.client().get_metric_history(run_id, name) for name in names]
    return [max(history, key=lambda point: (point.step, point.timestamp)) for history in histories if history]


@store.answering()
def record_model(run_id: str, root: Path, params: Params) -> ModelVersion:
    """Log and register the ONNX model and the code that serves it, or link to the version of that content.

    The same content means the same weights, ONNX file and serving code. So a training done again makes no
    second version, while a change in `export.opset` or in the serving code does.

    Returns:
        The registered version. `registry.promote` decides on its alias.
    """
    from mlflow.entities import LoggedModelOutput

    client = store.client()
    name = f"tenfold-{params.data.dataset}"
    summary = Summary.load(root / paths.SUMMARY)
    identity = {
        runs.MODEL: runs.file_sha256(root / paths.BEST_CHECKPOINT),
        registry.SERVED: _sha256(
            [runs.file_sha256(root / paths.ONNX_MODEL), *map(runs.file_sha256, packaging.SOURCES)]
        ),
    }
    with store.lock():
        version = registry.find(name, identity)
        if version is None:
            ready = _own_model(run_id, identity, "READY")
            model = str(ready.model_id) if ready else _log_model(run_id, root, summary, identity)
            version = registry.register(
                name, model, run_id, identity=identity, acc=_metrics(root)["test/acc"], summary=summary
            )
    logged = registry.logged_model(version)
    if not client.list_logged_model_artifacts(logged):
        _log_files(logged, root)
    for run in (run_id, *runs.others(identity[runs.MODEL], run_id, without=runs.VERSION)):
        if logged not in _outputs(run):
            client.log_outputs(run, [LoggedModelOutput(logged, step=0)])
        store.set_tags(run, {runs.VERSION: f"{version.name}/{version.version}"})
    return version


def _outputs(run_id: str) -> list[str]:
    outputs = store.client().get_run(run_id).outputs
    return [output.model_id for output in outputs.model_outputs] if outputs else []


def _own_model(run_id: str, identity: Mapping[str, str], status: str) -> LoggedModel | None:
    """A model that the run has already: an export was cut short (PENDING or READY), or its version was deleted."""
    client = store.client()
    experiment = client.get_run(run_id).info.experiment_id
    models = client.search_logged_models([experiment], filter_string=f"source_run_id = '{run_id}'")
    same = (model for model in models if model.status == status and identity.items() <= model.tags.items())
    return next(same, None)


def _log_model(run_id: str, root: Path, summary: Summary, identity: Mapping[str, str]) -> str:
    """Log the model on the run; its metrics hang on it, each with the data set that it was measured on."""
    from mlflow.entities import LoggedModelOutput, Metric

    client = store.client()
    run = client.get_run(run_id)
    model = _own_model(run_id, identity, "PENDING") or client.create_logged_model(
        run.info.experiment_id,
        name="model",
        source_run_id=run_id,
        tags=dict(identity),
        params=run.data.params,
    )
    measured = _latest(run_id, _metrics(root))
    points = [
        Metric(
            *(point.key, point.value, point.timestamp, point.step),
            model_id=model.model_id,
            dataset_name=summary.dataset,
            dataset_digest=summary.sha256[point.key.partition("/")[0]][:DIGEST_CHARACTERS],
        )
        for point in measured
    ]
    store.log_points(run_id, points)
    _log_files(model.model_id, root)
    client.finalize_logged_model(model.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
    return str(model.model_id)


def _log_files(model_id: str, root: Path) -> None:
    import numpy as np
    from mlflow.models import Model

    client = store.client()
    model = client.get_logged_model(model_id)
    image = np.load(root / paths.SPLIT / "test" / "images.npy", mmap_mode="r")[0]
    # Not `Model.log`: it takes the experiment from the environment, and hangs metrics of any kind on the model.
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / "model"
        packaging.save(
            local,
            root / paths.ONNX_MODEL,
            image,
            Model(run_id=model.source_run_id, model_id=model_id, artifact_path=model.artifact_location),
        )
        client.log_model_artifacts(model.model_id, str(local))


def _metrics(root: Path) -> dict[str, float]:
    """`reports/metrics.json` under MLflow's names: `{"train/loss": …, …, "test/acc": …}`."""
    measured = _read_json(root / paths.METRICS)
    return {f"{part}/{name}": float(value) for part, values in measured.items() for name, value in values.items()}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TenfoldError(f"{path}: cannot be read ({error}). Make it again: dvc repro") from None
    return content


def _files(root: Path, folder: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in (root / folder).rglob("*") if path.is_file())


def _files_sha256(root: Path, files: Iterable[Path]) -> str:
    return _sha256(f"{file.as_posix()} {runs.file_sha256(root / file)}" for file in files)


def _sha256(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
