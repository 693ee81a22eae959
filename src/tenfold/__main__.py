"""The command line: one verb per stage of the pipeline, and the verbs for people."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys
import traceback
from contextlib import suppress
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from tenfold import paths
from tenfold.errors import TenfoldError
from tenfold.params import Params
from tenfold.reproduce import flat_names
from tenfold.tracking import store

DEBUG = "TENFOLD_DEBUG"
LAST_ERROR = Path(".tenfold/last-error.txt")
MANUAL = """A reproducible, tracked training pipeline for image classification.

`dvc repro` runs the six stages, each of which is a verb here; what they do is set in `params.yaml`. The other verbs are
for people. They work from any folder of the project.

**Examples**

- `tenfold recipe fast && dvc repro`: other settings, then whatever depends on them
- `tenfold repro --max_epochs 3`: the pipeline with other settings, in a temporary copy
- `tenfold predict photo.jpg`: what the champion says of a picture
- `tenfold serve`: the champion over HTTP, and a page to draw on
- `tenfold ui`: MLflow's pages

**Files:** `params.yaml` the settings · `dvc.yaml` the stages · `models/`, `reports/` what they made · `mlflow.db`,
`mlruns/` MLflow's store · `.tenfold/` downloads, interrupted trainings, the last error

**Environment:** `MLFLOW_TRACKING_URI` another MLflow store · `TENFOLD_DATA_MIRROR` a URL or folder with the data set ·
`TENFOLD_DEBUG=1` as `--debug`, also for stages of `dvc repro` · `NO_COLOR` no colours

**Exit status:** 0 done · 1 an error, or not all was well · 2 a command that is not understood · 130 or 143 interrupted

**More:** `tenfold VERB --help`, README.md, docs/
"""

app = typer.Typer(
    name="tenfold",
    help=MANUAL,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
STAGES = "Stages (run by dvc repro)"
PEOPLE = "For people"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tenfold {version('tenfold')}")
        raise typer.Exit


@app.callback()
def project(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show where in the code an error arose.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Work in the project's root, from wherever in the project the verb was typed."""
    context.obj = Path.cwd()
    if debug:
        os.environ[DEBUG] = "1"  # of the processes that it starts as well
    if "--help" not in sys.argv:
        os.chdir(paths.find_root())


def _stage(name: str) -> None:
    """Run a stage, after checking all settings, not only its own, and the store that later stages write to."""
    params = Params.load()
    store.check()
    _tidy_up_on_sigterm()
    importlib.import_module(f"tenfold.stages.{name}").run(params)


def _tidy_up_on_sigterm() -> None:
    """Let blocks end as they do with an error, so that nothing half-written stays."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@app.command(rich_help_panel=STAGES)
def download() -> None:
    """Fetch the data set and verify its files."""
    _stage("download")


@app.command(rich_help_panel=STAGES)
def split() -> None:
    """Divide the images into train, val and test."""
    _stage("split")


@app.command(rich_help_panel=STAGES)
def tune() -> None:
    """Find the learning rate and the batch size that `auto` stands for."""
    _stage("tune")


@app.command(rich_help_panel=STAGES)
def train() -> None:
    """Train the network and keep the best weights."""
    _stage("train")


@app.command(rich_help_panel=STAGES)
def evaluate() -> None:
    """Measure the best weights on train, val and test."""
    _stage("evaluate")


@app.command(rich_help_panel=STAGES)
def export() -> None:
    """Write the ONNX model, log and register it."""
    _stage("export")


def _recipes() -> list[str]:
    """For the shell's completion, which has no room for errors."""
    with suppress(TenfoldError):
        return sorted(file.stem for file in (paths.find_root() / "recipes").glob("*.yaml"))
    return []


@app.command(rich_help_panel=PEOPLE)
def recipe(
    name: Annotated[
        str, typer.Argument(help="Of a recipe; without one, all are listed.", autocompletion=_recipes)
    ] = "",
    overrides: Annotated[
        bool, typer.Option("--overrides", help="Print it as arguments of dvc exp run instead, and change nothing.")
    ] = False,
) -> None:
    """Write a set of values with a name into params.yaml."""
    from tenfold import recipes

    if not name:
        for known, meaning in recipes.describe().items():
            print(f"{known}: {meaning}")
    elif overrides:
        print(recipes.overrides(name))
    else:
        for key, (before, after) in recipes.apply(name).items():
            print(f"{key}: {before} → {after}")


@app.command(rich_help_panel=PEOPLE)
def sync() -> None:
    """Bring the MLflow store in line with the files of this checkout."""
    from tenfold.tracking.sync import sync as bring_in_line

    print(bring_in_line(Path()))


@app.command(rich_help_panel=PEOPLE)
def verify() -> None:
    """Prove that training is bit-exact: twice, and once more with a kill in the middle. Exit status 1: it is not."""
    from tenfold.verify import verify as prove

    Params.load()
    raise typer.Exit(0 if prove() else 1)


@app.command(rich_help_panel=PEOPLE)
def tricks(
    names: Annotated[list[str] | None, typer.Argument(help="Of rows or tables in tricks.yaml; without, all.")] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each row.", min=1)] = 5,
    again: Annotated[bool, typer.Option("--again", help="Measure anew what is measured already.")] = False,
) -> None:
    """Measure what each trick brings: seconds, memory and accuracy, with intervals. Stopped, it goes on later."""
    from tenfold.measure.campaign import measure

    params = Params.load()
    store.check()
    _tidy_up_on_sigterm()
    raise typer.Exit(0 if measure(params, names or [], seeds, again) else 1)


@app.command(rich_help_panel=PEOPLE)
def promote(
    version: Annotated[str, typer.Argument(help="The version that is to be champion.")] = "",
    rollback: Annotated[bool, typer.Option("--rollback", help="Back to the champion before.")] = False,
) -> None:
    """Make a version of the registered model the champion, or go back to the one before."""
    from tenfold.tracking import registry

    name = f"tenfold-{Params.load().data.dataset}"
    if rollback == bool(version):
        raise TenfoldError("promote: give either the number of a version or --rollback")
    if rollback:
        registry.roll_back(name)
    else:
        registry.promote_by_hand(name, version)


Model = Annotated[str, typer.Option(help="An MLflow model URI, or a folder; by default the champion.")]


@app.command(rich_help_panel=PEOPLE)
def predict(
    context: typer.Context,
    images: Annotated[list[str], typer.Argument(help="Image files, folders, or - for standard input.")],
    model: Model = "",
    top_k: Annotated[int, typer.Option(help="Probabilities to show; 0: all.", min=0)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    explain: Annotated[str, typer.Option(help="Write a picture of what the network saw to this file.")] = "",
) -> None:
    """Say what is on pictures: `tenfold predict photo.jpg`. Exit status 1: not on all of them."""
    from tenfold.predict import predict as ask

    where: Path = context.obj
    answered = ask(images, where, _model(model, where), top_k, as_json, where / explain if explain else None)
    raise typer.Exit(0 if answered else 1)


def _model(named: str, where: Path) -> str:
    """The folder that was named, from where the verb was typed; or the URI; or that of the champion."""
    if named:
        return os.path.relpath(where / named) if (where / named).is_dir() else named
    return f"models:/tenfold-{Params.load().data.dataset}@champion"


Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)]


@app.command(rich_help_panel=PEOPLE)
def ui(host: Host = "127.0.0.1", port: Port = 5000) -> None:
    """Browse the runs in MLflow's pages."""
    from tenfold.servers import open_ui

    open_ui(host, port)


@app.command(rich_help_panel=PEOPLE)
def serve(
    context: typer.Context,
    model: Model = "",
    host: Host = "127.0.0.1",
    port: Port = 5001,
) -> None:
    """Serve a registered model over HTTP, with a page to draw on."""
    from tenfold.servers import serve_model

    serve_model(_model(model, context.obj), host, port)


@app.command(
    rich_help_panel=PEOPLE,
    epilog=f"**Settings:** {', '.join(flat_names())}",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [] if os.environ.get("MLFLOW_RUN_ID") else ["--help"],
    },
)
def repro(
    context: typer.Context,
    until: Annotated[list[str] | None, typer.Option(help="Stop after this stage.")] = None,
) -> None:
    """Run the pipeline with other settings: `tenfold repro --max_epochs 3`.

    It runs in a temporary copy, and is then a DVC experiment (`dvc exp show`, `dvc exp apply`).

    Settings go by their flat names: `train.max_epochs` is `--max_epochs`, `data.dataset` is `--data_dataset`. Those not
    given are as in params.yaml, which stays as it is. This is what `mlflow run` calls.
    """
    from tenfold.reproduce import reproduce

    if until and len(until) > 1:
        raise TenfoldError("--until: given twice; it is no setting")
    reproduce(context.args, until[0] if until else None)


def main() -> None:
    """Run a verb. An error is one line, and exit status 1; `--debug` shows where it arose as well."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be of any bytes
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars are for terminals
    try:
        app()
    except TenfoldError as error:
        _show(str(error))
    except SystemExit as end:
        if end.code:
            raise
        _leave()
    except Exception as error:
        _show(f"{type(error).__name__}: {error} (unexpected; where it arose: {_keep(traceback.format_exc())})")
    sys.exit(1)


def _show(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    if os.environ.get(DEBUG, "0") not in {"", "0"}:
        traceback.print_exc()
    console = Console(stderr=True, soft_wrap=True)
    console.print(Text.assemble(("error:", "bold red"), " ", message))


def _keep(trace: str) -> str:
    """Write a traceback where it can be found later; says where, or, where that cannot be, how to see it."""
    try:
        LAST_ERROR.parent.mkdir(exist_ok=True)
        LAST_ERROR.write_text(trace, encoding="utf-8")
    except OSError:
        return "--debug"
    return f"{LAST_ERROR}, or --debug"


def _leave() -> None:
    """End at once. Python takes seconds to dismantle torch, and in those a kill would undo a finished stage."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the work is done
        signal.signal(number, signal.SIG_IGN)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
