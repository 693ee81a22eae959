"""A real PostgreSQL, of Debian's package, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import free_port


@contextmanager
def postgres() -> Iterator[str | None]:
    """The URI of a new database; None where the package is not installed, but not in CI."""
    found = shutil.which("pg_ctl") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")), None)
    if found is None:
        assert not os.environ.get("CI"), "needs PostgreSQL: apt-get install postgresql"
        yield None
        return
    programs, folder, port = Path(found).resolve().parent, Path(tempfile.mkdtemp()), free_port()

    def run(*command: str) -> None:
        as_postgres = ["su", "postgres", "-s", "/bin/sh", "-c", " ".join(command)]
        done = subprocess.run(
            as_postgres if os.getuid() == 0 else list(command), cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
    run(f"{programs}/initdb", "-D", f"{folder}/data", "-A", "trust", "-U", "mlflow", "--no-sync")
    options = f"-p {port} -k {folder} -h 127.0.0.1"
    quoted = f"'{options}'" if os.getuid() == 0 else options
    run(f"{programs}/pg_ctl", "-D", f"{folder}/data", "-l", f"{folder}/log", "-w", "-o", quoted, "start")
    try:
        yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/postgres"
    finally:
        run(f"{programs}/pg_ctl", "-D", f"{folder}/data", "-m", "immediate", "stop")
        shutil.rmtree(folder)
