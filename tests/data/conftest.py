"""A project folder with nothing beside it, MNIST's files, and a real HTTP server on loopback."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

MNIST = Path(__file__).parents[2].parent / "shared/data/mnist"


@pytest.fixture
def mnist_files() -> Path:
    """The folder beside the checkout that holds MNIST's four files."""
    if not MNIST.is_dir():
        pytest.skip(f"MNIST's files are not beside the checkout ({MNIST})")
    return MNIST


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project as working directory; loopback is reached directly, whatever the environment says."""
    for name in ("DVC_ROOT", "TENFOLD_DATA_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """A function that serves a folder over HTTP, with a handler of one's own if wanted, and gives its URL."""
    servers: list[ThreadingHTTPServer] = []

    def start(folder: Path, handler: type[SimpleHTTPRequestHandler] = SimpleHTTPRequestHandler) -> str:
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder))))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def dead_url() -> str:
    """A URL at which nobody listens."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    server.server_close()
    return f"http://127.0.0.1:{server.server_port}/"
