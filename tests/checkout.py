"""A real checkout of the project in a temporary folder, for tests that use it as people do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

PROJECT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Checkout:
    """A clone of the project, with an MLflow store of its own."""

    root: Path

    def run(self, *command: str, status: int | None = 0, **environment: str) -> str:
        """Run a command in the checkout's root, in this test's Python environment; its output, both streams.

        Args:
            status: the exit status it must have; None: any but 0.
            environment: variables set for this command.
        """
        done = subprocess.run(
            command,
            cwd=self.root,
            env=clean_environment() | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        expected = done.returncode != 0 if status is None else done.returncode == status
        assert expected, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-8000:]}"
        return done.stdout

    def tenfold(self, *arguments: str, status: int | None = 0, **environment: str) -> str:
        """Run a verb."""
        return self.run(sys.executable, "-m", "tenfold", *arguments, status=status, **environment)

    def edit(self, pattern: str, replacement: str, file: str = "params.yaml") -> None:
        """Change one place of a file."""
        path = self.root / file
        text, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE)
        assert count == 1, f"{pattern} is not in {file}"
        path.write_text(text, encoding="utf-8")

    def read(self, file: str) -> str:
        """A file's text."""
        return (self.root / file).read_text(encoding="utf-8")

    def client(self) -> MlflowClient:
        """A client of the checkout's store."""
        from mlflow import MlflowClient

        uri = f"sqlite:///{self.root / 'mlflow.db'}"
        return MlflowClient(tracking_uri=uri, registry_uri=uri)

    def runs(self, experiment: str) -> list[str]:
        """Ids of the runs of an experiment, newest first."""
        client = self.client()
        found = client.get_experiment_by_name(experiment)
        return [run.info.run_id for run in client.search_runs([found.experiment_id])] if found else []


def clean_environment() -> dict[str, str]:
    """This process's environment without what would steer DVC, MLflow or the project, and with its programs first."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLFLOW_", "DVC_", "TENFOLD_", "COV_", "COVERAGE_", "PYTEST_"))
    }
    programs = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    return kept | {"PATH": programs, "PYTHONPATH": "src", "PYTHONUNBUFFERED": "1", "TQDM_DISABLE": "1"}


def clone(target: Path) -> Checkout:
    """The project as it is in the working tree, committed to a git repository of its own at `target`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (PROJECT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, target / name)
    checkout = Checkout(target)
    for command in ("git init -q -b main", "git add -A"):
        checkout.run(*command.split())
    commit(checkout, "The project")
    return checkout


def commit(checkout: Checkout, message: str) -> None:
    """Commit everything in a checkout."""
    author = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    checkout.run("git", *author, "commit", "-q", "--all", "--allow-empty", "--message", message)


@dataclass(frozen=True)
class Pipeline:
    """The project after one `dvc repro`."""

    checkout: Checkout
    output: str
