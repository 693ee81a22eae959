"""Real servers in processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

READY_S = 90.0


def free_port() -> int:
    """A port of loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str | Path], address: str, folder: Path, environment: Mapping[str, str], log: Path
) -> Iterator[None]:
    """A server, from its first answer on; its whole process group ends with the block.

    Args:
        command: that starts it.
        address: that answers when it is up.
        folder: where it is started.
        environment: all its variables.
        log: the file to write what it says to.
    """
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + READY_S
        while True:
            assert server.poll() is None, f"{command} ended:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"{command} does not answer:\n{log.read_text()}"
            with suppress(OSError):
                urllib.request.urlopen(address, timeout=5).close()
                break
            time.sleep(0.05)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(10)
        with suppress(ProcessLookupError):  # MLflow does not wait for its uvicorn
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(10)
