"""A project folder with nothing beside it, MNIST's files, and real HTTP servers on loopback, good and bad ones."""

from __future__ import annotations

import functools
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits: three tries each."""
    from tenfold.data import fetch

    monkeypatch.setattr(fetch, "CONNECT_TIMEOUT_S", 1.0)
    monkeypatch.setattr(fetch, "READ_TIMEOUT_S", 1.0)
    monkeypatch.setattr(fetch, "BACKOFF_S", (0.01, 0.02))


class Server(ThreadingHTTPServer):
    """Listens on a free port of loopback until closed."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.closing = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are no news."""

    def close(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request to a `Mirror`."""

    server: Mirror

    def do_GET(self) -> None:
        mirror = self.server
        mirror.requests.append(self)
        behaviour = mirror.script.pop(0) if len(mirror.script) > 1 else mirror.script[0]
        with suppress(ConnectionError):
            behaviour(self)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def head(self, status: int = 200, **headers: str | int) -> None:
        """Send the head of an answer; the body is up to the caller."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def send(self, content: bytes) -> None:
        self.wfile.write(content)
        self.wfile.flush()

    def hang_up(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)


Behaviour = Callable[[Handler], None]


class Mirror(Server):
    """Serves one content at every path, and follows a script: one behaviour per request, the last one for ever."""

    def __init__(self, content: bytes, *script: Behaviour) -> None:
        super().__init__(Handler)
        self.content, self.etag = content, '"1"'
        self.script = list(script) or [well]
        self.requests: list[Handler] = []

    @property
    def ranges(self) -> list[str | None]:
        """What each request asked for."""
        return [request.headers.get("Range") for request in self.requests]


def well(to: Handler) -> None:
    """As a good server, which knows ranges."""
    content, tag = to.server.content, to.server.etag
    asked = re.fullmatch(r"bytes=(\d+)-", to.headers.get("Range", ""))
    start = int(asked[1]) if asked and to.headers.get("If-Range") in (None, tag) else 0
    if start and start >= len(content):
        to.head(416, Content_Range=f"bytes */{len(content)}", Content_Length=0)
    elif start:
        size = len(content)
        to.head(206, ETag=tag, Content_Range=f"bytes {start}-{size - 1}/{size}", Content_Length=size - start)
        to.send(content[start:])
    else:
        to.head(200, ETag=tag, Content_Length=len(content))
        to.send(content)


def status(code: int) -> Behaviour:
    return lambda to: to.head(code, Content_Length=0)


def web_page(to: Handler) -> None:
    page = b"\n<!DOCTYPE html><html>Please log in</html>"
    to.head(200, Content_Type="text/html", Content_Length=len(page))
    to.send(page)


def half(to: Handler) -> None:
    """A body shorter than promised: the connection drops in the middle."""
    content = to.server.content
    to.head(200, ETag=to.server.etag, Content_Length=len(content))
    to.send(content[: len(content) // 2])
    to.hang_up()


def wrong_file(to: Handler) -> None:
    to.head(200, Content_Length=5)
    to.send(b"wrong")


def nothing(to: Handler) -> None:
    """Accept and never answer."""
    to.server.closing.wait(60)


def stall(to: Handler) -> None:
    """Half of the body, then silence."""
    content = to.server.content
    to.head(200, ETag=to.server.etag, Content_Length=len(content))
    to.send(content[: len(content) // 2])
    to.server.closing.wait(60)


def trickle(to: Handler) -> None:
    """The body, 200 bytes a second."""
    to.head(200, ETag=to.server.etag, Content_Length=len(to.server.content))
    for start in range(0, len(to.server.content), 10):
        to.send(to.server.content[start : start + 10])
        if to.server.closing.wait(0.05):
            break


def redirect(to: Handler) -> None:
    """To itself."""
    to.head(302, Location=to.path, Content_Length=0)


@pytest.fixture
def mirror() -> Iterator[Callable[..., Mirror]]:
    """A function that starts a `Mirror`."""
    mirrors: list[Mirror] = []

    def start(content: bytes, *script: Behaviour) -> Mirror:
        mirrors.append(Mirror(content, *script))
        return mirrors[-1]

    yield start
    for each in mirrors:
        each.close()


class Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """A function that serves a folder over HTTP, and gives its URL."""
    servers: list[Server] = []

    def start(folder: Path) -> str:
        servers.append(Server(functools.partial(Files, directory=str(folder))))
        return servers[-1].url

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def dead_url() -> str:
    """A URL at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/"
