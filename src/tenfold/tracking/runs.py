"""MLflow runs: opening, ending and finding them. A model's run is found by the SHA-256 of its checkpoint.

Runs are always named by id, never "active": so nothing here collides with an outer `mlflow run`.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import signal
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from tenfold import processes
from tenfold.errors import TenfoldError
from tenfold.tracking import journal, provenance, store
from tenfold.tracking.journal import ERROR, Journal
from tenfold.tracking.provenance import PROCESS

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRun

P = ParamSpec("P")

TRAINING = "tenfold"
TUNING = "tenfold-tune"

MODEL = "tenfold.model_sha256"
"""Tag: the hash of `models/best.ckpt`. It makes a run that model's."""
TUNE = "tenfold.tune_sha256"
"""Tag of a run of the tune stage: the hash of `reports/tune/`."""
TUNE_RUN = "tenfold.tune_run"
"""Tag: the id of the run that found the learning rate and the batch size."""
EVALUATION = "tenfold.evaluation_sha256"
"""Tag: the hash of the evaluation's files that this run holds."""
VERSION = "tenfold.model_version"
"""Tag: the registered version of the model, `<name>/<version>`."""
REPLAYED = "tenfold.replayed"
"""Tag: this run was rebuilt from the files, wholly or in part, and what of it cannot be."""

RECORD = "tenfold.record"
"""Tag: whether the run holds everything that its stage had to say: `WHOLE` or `PARTLY`."""
WHOLE, PARTLY = "complete", "incomplete: tenfold sync adds what is missing"
RESUMED = "tenfold.resumed"
"""Tag: how often the run was interrupted and went on."""

SAMPLING_S = 1.0
"""Interval of the system metrics: a short training gets some points, too."""
KILLED_WAIT_S = 3.0
"""How long a killed process tries to say so."""


@dataclass(frozen=True)
class Run:
    """A run that is being filled. `id` is empty on all but the first of several training processes.

    With a journal it is live, and a store that is away fails nothing.
    """

    id: str
    journal: Journal | None = None

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags, sooner or later."""
        if self.journal:
            self.journal.add_tags(tags)
        elif self.id:
            store.set_tags(self.id, tags)


def tolerant_of(
    loss: str = "`tenfold sync` adds the rest",
) -> Callable[[Callable[Concatenate[Run, P], None]], Callable[Concatenate[Run, P], None]]:
    """Make a function that fills a run do nothing without an id, and only warn if the store of a live run is away.

    Args:
        loss: what is said of that which did not arrive.
    """

    def decorate(record: Callable[Concatenate[Run, P], None]) -> Callable[Concatenate[Run, P], None]:
        @functools.wraps(record)
        def call(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> None:
            if not run.id:
                return
            try:
                if run.journal and not run.journal.flush():
                    raise store.StoreError("the MLflow store is away")
                with store.answering():
                    record(run, *args, **kwargs)
            except store.StoreError as error:
                if not run.journal:
                    raise
                run.tag({RECORD: PARTLY})
                warnings.warn(f"MLflow run {run.id} is incomplete; {loss}: {error}", stacklevel=2)

        return call

    return decorate


@contextmanager
def open_run(
    experiment: str,
    name: str,
    *,
    folder: Path | None = None,
    tags: Mapping[str, str] | None = None,
    root: Path | None = None,
) -> Iterator[Run]:
    """Open a run, and end it with the block: FINISHED, FAILED (with the error as a tag) or KILLED.

    Where `MLFLOW_RUN_ID` is set, that is the training run: `mlflow run` made it and ends it if all goes well.

    Args:
        experiment: made if it is new.
        name: says what is being done; a run that exists already keeps its name.
        folder: where the training keeps what it needs to go on after an interruption. The journal lies there too, and
            the run that it names is gone on with. When the block ends well, the folder may be deleted.
        tags: what only the caller knows, such as `provenance.PRECISION`.
        root: a checkout that the run is replayed from. Without one something is being computed here: this machine is
            recorded, and its load while the block runs; and nothing fails, or waits long, if the store goes away.

    Raises:
        TenfoldError: the store cannot be used, or `MLFLOW_RUN_ID` names no run, or the run of another model.
    """
    if _rank() > 0:
        yield Run("")
        return
    file = (folder / journal.NAME) if folder else journal.folder() / f"{uuid.uuid4().hex}.jsonl"
    book = None if root else Journal(file)
    run, outer = Run("", book), None
    try:
        with _sigterm_raises():
            with store.answering():
                outer = outer_run() if experiment == TRAINING else None
                tidy(but=file)
                known = provenance.source_tags(root or Path()) | (provenance.machine_tags() if book else {})
                run = Run(_enter(experiment, name, outer, book, known | dict(tags or {})), book)
            with _system_metrics(book) if book else nullcontext():
                yield run
    except BaseException as error:
        _end(Run(run.id or (book.run_id if book and book.is_open else ""), book), outer, error)
        raise
    _end(run, outer)


def _enter(experiment: str, name: str, outer: MlflowRun | None, book: Journal | None, tags: dict[str, str]) -> str:
    """The id of the outer run, of the one that the journal names, or of a new one; with tags, and RUNNING."""
    client = store.client()
    process = provenance.process(outer.info.run_id if outer else "")
    earlier = _journaled(book) if book else None
    run = outer or earlier
    if outer and MODEL in outer.data.tags and not (earlier and earlier.info.run_id == outer.info.run_id):
        raise TenfoldError(
            f"MLFLOW_RUN_ID: {outer.info.run_id} is the run of a model trained before, and each training "
            "has a run of its own. Unset the variable."
        )
    if book:
        book.open(process=process, uri=store.tracking_uri(), experiment=experiment, name=name)
    if run is None:
        name = (experiment == TRAINING and os.environ.get("MLFLOW_RUN_NAME")) or name
        run = client.create_run(store.experiment(experiment), run_name=name, tags={PROCESS: process})
    name_if_made_up(run, name)
    run_id, there = str(run.info.run_id), run.data.tags
    store.set_tags(run_id, {PROCESS: process})
    if book:
        book.feed(run_id)
        book.start()
    if earlier and earlier.info.run_id == run_id:
        tags |= {RESUMED: str(int(there.get(RESUMED, 0)) + 1)}
        client.update_run(run_id, "RUNNING")
        if ERROR in there:
            client.delete_tag(run_id, ERROR)
    fresh = {key: value for key, value in tags.items() if key not in there or key == RESUMED}
    Run(run_id, book).tag(fresh)
    if fresh.get(provenance.DIRTY) == "true":
        client.log_text(run_id, provenance.changes(Path()), "source/changes.diff")
    return run_id


def name_if_made_up(run: MlflowRun, name: str) -> None:
    """Name a run whose name MLflow made up, as it does under `mlflow run` without one: `masked-crab-123`."""
    from mlflow.utils import name_utils

    predicate, _, rest = str(run.info.run_name).partition("-")
    noun, _, number = rest.partition("-")
    known = predicate in name_utils._GENERATOR_PREDICATES and noun in name_utils._GENERATOR_NOUNS
    if known and number.isdigit():
        store.client().update_run(str(run.info.run_id), name=name)


def _journaled(book: Journal) -> MlflowRun | None:
    """The run that a journal belongs to, if the store still has it."""
    opened = journal.opened(book.file)
    if not book.run_id and opened:  # killed between the making of the run and the noting of its id
        found = find([store.experiment(opened["experiment"])], PROCESS, opened["process"])
        return store.client().get_run(found) if found else None
    return get_run(book.run_id) if book.run_id else None


def get_run(run_id: str) -> MlflowRun | None:
    """A run, if the store has it and it is not deleted."""
    from mlflow.exceptions import MlflowException

    try:
        run = store.client().get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    return run if run.info.lifecycle_stage == "active" else None


def tidy(but: Path | None = None) -> None:
    """Send what earlier processes could not, and mark as KILLED what they left RUNNING.

    Args:
        but: the journal of a run that is going on.
    """
    for file in sorted(journal.folder().parent.rglob("*.jsonl")):
        try:
            if file != but:
                _deliver(file)
        except Exception as error:  # it stays, and hinders nobody
            warnings.warn(f"{file}: could not be sent to MLflow: {store.reason(error)}", stacklevel=2)
    client = store.client()
    experiments = [found.experiment_id for found in client.search_experiments()]
    for run in client.search_runs(experiments, "attributes.status = 'RUNNING'"):
        being_filled = run.info.run_id == os.environ.get("MLFLOW_RUN_ID")  # its `mlflow run` may be gone, we are not
        if not being_filled and processes.is_gone(run.data.tags.get(PROCESS, "")):
            store.set_tags(run.info.run_id, {ERROR: "its process is gone: SIGKILL, or the machine went off"})
            client.set_terminated(run.info.run_id, "KILLED")


def end_abandoned(run_id: str) -> None:
    """End a run, all of which is there, if it is the outer one and its `mlflow run`, which should do so, is gone."""
    outer = outer_run()
    if outer and outer.info.run_id == run_id and processes.is_gone(outer.data.tags.get(PROCESS, "")):
        store.client().set_terminated(run_id, "FINISHED")


def _deliver(file: Path) -> None:
    """Send what is left of a journal that nobody writes; to a new run if its own has gone from the store."""
    facts = journal.opened(file)
    if not facts or (facts["process"] and not processes.is_gone(facts["process"])):
        return
    book = Journal(file)
    run = _journaled(book)
    if run is None and facts["uri"] != store.tracking_uri():
        return  # of another store
    in_resume_folder = file.parent != journal.folder()
    if run is None and in_resume_folder:
        return  # the training makes a new one when it goes on
    if run is None:
        run = store.client().create_run(store.experiment(facts["experiment"]), run_name=facts["name"])
    book.feed(str(run.info.run_id))
    book.send_all()
    if not in_resume_folder:
        file.unlink(missing_ok=True)


def find_run(model_sha256: str) -> str | None:
    """The id of the run of a model: `MLFLOW_RUN_ID`'s if that is one, else the newest in any experiment."""
    outer = outer_run()
    if outer is not None and outer.data.tags.get(MODEL) == model_sha256:
        return str(outer.info.run_id)
    experiments = [found.experiment_id for found in store.client().search_experiments()]
    return find(experiments, MODEL, model_sha256)


def others(model_sha256: str, run_id: str, without: str = "") -> list[str]:
    """The ids of other runs of a model, those of equal trainings; if a tag is named, only those that lack it."""
    client = store.client()
    experiments = [found.experiment_id for found in client.search_experiments()]
    found = client.search_runs(experiments, f"tags.`{MODEL}` = '{model_sha256}'")
    return [str(run.info.run_id) for run in found if run.info.run_id != run_id and without not in run.data.tags]


def find_tune_run(tune_sha256: str) -> str | None:
    """The id of the newest run of that tuning (`records.tune_sha256`)."""
    found = store.client().get_experiment_by_name(TUNING)
    return find([found.experiment_id], TUNE, tune_sha256) if found else None


def find(experiments: list[str], tag: str, value: str) -> str | None:
    """The id of the newest run there with that tag."""
    found = store.client().search_runs(
        experiments, f"tags.`{tag}` = '{value}'", max_results=1, order_by=["attributes.start_time DESC"]
    )
    return str(found[0].info.run_id) if found else None


def outer_run() -> MlflowRun | None:
    """The run that `mlflow run` made for this process, if there is one.

    Raises:
        TenfoldError: `MLFLOW_RUN_ID` names a run that the store does not have.
    """
    run_id = os.environ.get("MLFLOW_RUN_ID")
    if not run_id:
        return None
    run = get_run(run_id)
    if run is None:
        raise TenfoldError(f"MLFLOW_RUN_ID: the store has no run {run_id}, or it was deleted. Unset the variable.")
    return run


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal.

    Raises:
        TenfoldError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise TenfoldError(
            f"{path}: cannot be read ({error.strerror}). Make it: dvc repro, or fetch it: dvc pull"
        ) from None


def _end(run: Run, outer: MlflowRun | None, error: BaseException | None = None) -> None:
    """End a run. A store that fails now must neither hide the error of the block nor undo its work."""
    if not run.id:  # nothing was begun
        return
    error = _reason(error)
    killed = isinstance(error, KeyboardInterrupt | Terminated)
    ends_by_itself = outer and not processes.is_gone(outer.data.tags.get(PROCESS, ""))
    status = "KILLED" if killed else "FAILED" if error else "" if ends_by_itself else "FINISHED"
    why = f"{type(error).__name__}: {error}".removesuffix(": ") if error else ""
    if run.journal:
        if status:
            run.journal.end(status, why)
        if not run.journal.close(KILLED_WAIT_S if killed else None, done=error is None):
            warnings.warn(
                f"MLflow did not get everything of run {run.id}. `tenfold sync` sends the rest: {run.journal.file}",
                stacklevel=2,
            )
        return
    try:
        store.set_tags(run.id, {ERROR: why} if why else {})
        if status:
            store.client().set_terminated(run.id, status)
    except Exception as failure:
        warnings.warn(f"MLflow run {run.id} could not be marked {status}: {failure}", stacklevel=2)


def _reason(error: BaseException | None) -> BaseException | None:
    """What ended a block: Lightning turns Ctrl+C into `sys.exit(1)`; and `sys.exit(0)` is no error."""
    if not isinstance(error, SystemExit) or isinstance(error, Terminated):
        return error
    cause = _reason(error.__context__) if error.__context__ else None
    if isinstance(cause, KeyboardInterrupt | Terminated):
        return cause
    return error if error.code else None


class Terminated(SystemExit):
    """SIGTERM as an exception, so that what is open gets closed; with the exit status that shells give it."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)

    def __str__(self) -> str:
        return "SIGTERM"


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` in the block, once. Lightning calls this handler after its own."""

    def handle(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _system_metrics(book: Journal) -> Iterator[None]:
    """Sample the load of this machine. Only the meters are MLflow's: its own loop ends when the store is away."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    meters: Any = SystemMetricsMonitor("", tracking_uri=store.tracking_uri())
    first = 1 + max((step for key, step in book.last_steps.items() if key.startswith("system/")), default=-1)
    ended = threading.Event()

    def sample() -> None:
        for step in itertools.count(first):
            last = ended.wait(SAMPLING_S)
            meters.collect_metrics()
            book.add_metrics({f"system/{key}": value for key, value in meters.aggregate_metrics().items()}, step)
            for meter in meters.monitors:
                meter.clear_metrics()
            if last:
                return

    thread = threading.Thread(target=sample, name="tenfold-system-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1.0)


def _rank() -> int:
    """Which of several training processes this is, from the variables of torchrun, Lightning and SLURM."""
    names = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), 0)
