"""Each way in which a server can misbehave, tried on a real one. The outcomes stand in docs/data.md."""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import pty
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tenfold.data import fetch
from tenfold.data.fetch import MissError
from tenfold.errors import TenfoldError
from tests.data.conftest import (
    Handler,
    Mirror,
    Server,
    half,
    nothing,
    redirect,
    stall,
    status,
    trickle,
    web_page,
    well,
    wrong_file,
)

CONTENT = os.urandom(50_000)
HALF = f"bytes={len(CONTENT) // 2}-"

pytestmark = pytest.mark.usefixtures("project", "impatient")
Start = Callable[..., Mirror]


class Got:
    """Downloads to the file `got`, of which only `CONTENT` is right."""

    def __init__(self, right: bytes = CONTENT) -> None:
        self.right, self.path, self.part = right, Path("folder/got"), Path("folder/got.part")

    def download(self, url: str) -> None:
        fetch.download(url, self.path, self.use)

    def use(self, path: Path) -> None:
        if path.read_bytes() != self.right:
            raise MissError("is another file")

    def whole(self) -> bool:
        """Whether the right file is there and nothing is left of the way to it."""
        names = {path.name for path in self.path.parent.iterdir()}
        return self.path.read_bytes() == self.right and names <= {"got", "got.lock"}


def test_a_good_server_is_asked_once(mirror: Start, capfd: pytest.CaptureFixture[str]) -> None:
    got, server = Got(), mirror(CONTENT)
    got.download(server.url)
    assert got.whole()
    assert server.ranges == [None]
    assert server.requests[0].headers["Accept-Encoding"] == "identity"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("behaviour", "reason", "tries", "is_down"),
    [
        (status(403), "answered 403 Forbidden", 1, False),
        (status(404), "answered 404 Not Found", 1, False),
        (status(204), "answered 204 No Content", 1, False),
        (status(429), "answered 429 Too Many Requests; tried 3 times", 3, True),
        (status(503), "answered 503 Service Unavailable; tried 3 times", 3, True),
        (web_page, "is a web page", 1, False),
        (wrong_file, "is another file", 1, False),
        (half, "broke off (25,000 bytes missing); tried 3 times", 3, True),
        (nothing, "sent nothing for 0.3 s; tried 3 times", 3, True),
        (stall, "sent nothing for 0.3 s; tried 3 times", 3, True),
        (redirect, "redirects without end", 31, False),
        (Handler.hang_up, "cannot be reached (Remote end closed connection without response); tried 3 times", 3, True),
    ],
)
def test_a_server_that_does_not_give_the_file(
    *,
    mirror: Start,
    behaviour: Callable[[Handler], None],
    reason: str,
    tries: int,
    is_down: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    got, server = Got(), mirror(CONTENT, behaviour)
    if behaviour in (nothing, stall):
        monkeypatch.setattr(fetch, "READ_TIMEOUT_S", 0.3)
    with pytest.raises(MissError) as miss:
        got.download(server.url)
    assert str(miss.value).startswith(reason)
    assert miss.value.source_is_down == is_down
    assert len(server.requests) == tries
    assert not got.path.exists()


def test_a_trickle_counts_as_silence(mirror: Start) -> None:
    got, server = Got(), mirror(CONTENT, trickle, well)
    got.download(server.url)
    assert got.whole()
    first, second = server.ranges
    assert first is None
    assert second is not None
    assert 0 < int(second[6:-1]) < 1000


@pytest.mark.parametrize("behaviour", [status(500), status(503), status(408), status(429), Handler.hang_up, nothing])
def test_a_failure_that_passes_is_tried_again(mirror: Start, behaviour: Callable[[Handler], None]) -> None:
    got, server = Got(), mirror(CONTENT, behaviour, behaviour, well)
    got.download(server.url)
    assert got.whole()
    assert len(server.requests) == 3


@pytest.mark.parametrize("behaviour", [half, stall])
def test_what_is_there_is_not_fetched_again(mirror: Start, behaviour: Callable[[Handler], None]) -> None:
    got, server = Got(), mirror(CONTENT, behaviour, status(503), well)
    got.download(server.url)
    assert got.whole()
    assert server.ranges == [None, HALF, HALF]
    assert server.requests[2].headers["If-Range"] == '"1"'


def test_a_later_process_goes_on_where_the_last_one_was(mirror: Start) -> None:
    got, server = Got(), mirror(CONTENT, half, status(403), well)
    with pytest.raises(MissError, match="403"):
        got.download(server.url)
    assert got.part.stat().st_size == 25_000
    got.download(server.url)
    assert got.whole()
    assert server.ranges == [None, HALF, HALF]


def test_another_mirror_starts_anew(mirror: Start) -> None:
    got, bad, good = Got(), mirror(CONTENT, half, status(403)), mirror(CONTENT)
    with pytest.raises(MissError):
        got.download(bad.url)
    got.download(good.url)
    assert got.whole()
    assert good.ranges == [None]


def test_a_login_page_does_not_take_the_place_of_a_part(mirror: Start) -> None:
    got, server = Got(), mirror(CONTENT, half, web_page, well)
    with pytest.raises(MissError, match="is a web page"):
        got.download(server.url)
    assert got.part.stat().st_size == 25_000
    got.download(server.url)
    assert server.ranges == [None, HALF, HALF]


def without_ranges(to: Handler) -> None:
    to.head(200, ETag=to.server.etag, Content_Length=len(to.server.content))
    to.send(to.server.content)


def half_unnamed(to: Handler) -> None:
    """Half, of a version without a name."""
    to.server.etag = 'W/"weak"'
    half(to)


def changed(to: Handler) -> None:
    """Half of an older version."""
    content, to.server.content = to.server.content, bytes(50_000)
    half(to)
    to.server.content, to.server.etag = content, '"2"'


def changed_unnoticed(to: Handler) -> None:
    changed(to)
    to.server.etag = '"1"'


def another_range(to: Handler) -> None:
    to.head(206, Content_Range="bytes 7-49999/50000", Content_Length=49_993)
    to.send(to.server.content[7:])


def shrunk(to: Handler) -> None:
    to.head(416, Content_Range="bytes */24000", Content_Length=0)


@pytest.mark.parametrize(
    ("script", "ranges"),
    [
        ([half, without_ranges], [None, HALF]),
        ([half_unnamed, well], [None, None]),
        ([changed, well], [None, HALF]),
        ([changed_unnoticed, well], [None, HALF, None]),
        ([half, another_range, well], [None, HALF, None]),
        ([half, shrunk, well], [None, HALF, None]),
    ],
    ids=["no ranges", "no name", "changed", "changed unnoticed", "another range", "shrunk"],
)
def test_a_part_that_cannot_be_completed_is_fetched_anew(
    mirror: Start, script: list[Callable[[Handler], None]], ranges: list[str | None]
) -> None:
    got, server = Got(), mirror(CONTENT, *script)
    got.download(server.url)
    assert got.whole()
    assert server.ranges == ranges


def test_a_part_that_is_whole_is_used(mirror: Start) -> None:
    got, server = Got(), mirror(CONTENT, half, status(403), well)
    with pytest.raises(MissError):
        got.download(server.url)
    got.part.write_bytes(CONTENT)
    got.download(server.url)
    assert got.whole()
    assert server.ranges[-1] == "bytes=50000-"


def chunked(*, end: bool) -> Callable[[Handler], None]:
    def behave(to: Handler) -> None:
        to.protocol_version = "HTTP/1.1"
        to.head(200, Transfer_Encoding="chunked")
        to.send(b"%x\r\n%s\r\n" % (len(CONTENT), CONTENT) + (b"0\r\n\r\n" if end else b""))

    return behave


def test_a_body_of_unsaid_length(mirror: Start) -> None:
    got, server = Got(), mirror(CONTENT, chunked(end=False), chunked(end=True))
    got.download(server.url)
    assert got.whole()
    assert len(server.requests) == 2


def test_a_packed_file_is_not_unpacked_on_the_way(mirror: Start) -> None:
    def label_as_encoding(to: Handler) -> None:  # as some servers do with files whose name ends in .gz
        to.head(200, Content_Encoding="gzip", Content_Length=len(to.server.content))
        to.send(to.server.content)

    packed = gzip.compress(CONTENT)
    got = Got(packed)
    got.download(mirror(packed, label_as_encoding).url)
    assert got.whole()


def test_a_body_without_end(mirror: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(to: Handler) -> None:
        to.head(200)
        while True:
            to.send(bytes(10_000))

    monkeypatch.setattr(fetch, "MAX_BYTES", 1_000_000)
    with pytest.raises(MissError, match="is larger than 1,000,000 bytes"):
        Got().download(mirror(CONTENT, endless).url)
    assert not Got().part.exists()


def test_nobody_listens(dead_url: str) -> None:
    with pytest.raises(MissError, match=r"cannot be reached \(.*Connection refused\); tried 3 times") as miss:
        Got().download(dead_url)
    assert miss.value.source_is_down


def test_a_host_that_is_not_there() -> None:
    with pytest.raises(MissError, match=r"cannot be reached \(.*\); tried 3 times"):
        Got().download("http://nowhere.invalid/")


def test_a_connection_without_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(fetch, "CONNECT_TIMEOUT_S", 0.2)
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # fill the queue of those that wait to be accepted
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        with pytest.raises(MissError, match=r"cannot be reached within 0.2 s; tried 3 times"):
            Got().download(f"http://127.0.0.1:{full.getsockname()[1]}/")


def test_no_tls(mirror: Start) -> None:
    server = mirror(CONTENT)
    with pytest.raises(MissError, match=r"cannot be reached safely \(.*SSL.*\)$") as miss:
        Got().download(server.url.replace("http://", "https://"))
    assert miss.value.source_is_down


def test_a_certificate_of_nobody(mirror: Start, tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    times = datetime(2020, 1, 1), datetime(2100, 1, 1)
    certificate = x509.CertificateBuilder(name, name, key.public_key(), 1, *times).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "pem").write_bytes(secret + certificate.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem")
    server = mirror(CONTENT)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with pytest.raises(MissError, match=r"cannot be reached safely \(.*certificate verify failed.*\)$"):
        Got().download(server.url.replace("http://", "https://"))
    assert not server.requests


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://127.0.0.1:port/", "http://*.example/"])
def test_an_url_that_is_none(url: str) -> None:
    with pytest.raises(MissError, match="no valid URL"):
        Got().download(url)


def test_a_redirect_is_followed_unless_it_leads_to_something_else_than_the_web(mirror: Start) -> None:
    got, good = Got(), mirror(CONTENT)
    got.download(mirror(CONTENT, lambda to: to.head(301, Location=good.url, Content_Length=0)).url)
    assert got.whole()
    with pytest.raises(MissError, match="no valid URL"):
        got.download(mirror(CONTENT, lambda to: to.head(301, Location="file:///etc/passwd", Content_Length=0)).url)


class Proxy(BaseHTTPRequestHandler):
    """A proxy that forwards."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(self.path) as answer:
            self.send_response(answer.status)
            self.end_headers()
            self.wfile.write(answer.read())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_proxy_of_the_environment_is_used(mirror: Start, dead_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server, got = mirror(CONTENT), Got()
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)
    Proxy.asked = []
    proxy = Server(Proxy)
    monkeypatch.setenv("http_proxy", proxy.url)
    got.download(f"{server.url}/file")
    proxy.close()
    assert got.whole()
    assert Proxy.asked == [f"{server.url}/file"]
    monkeypatch.setenv("http_proxy", dead_url.replace("//", "//me:secret@"))
    with pytest.raises(MissError, match=r"cannot be reached through the proxy \(.*refused\)") as miss:
        got.download(f"{server.url}/file")
    assert "secret" not in str(miss.value)


def test_a_password_is_sent_and_not_kept(mirror: Start) -> None:
    got, server = Got(), mirror(CONTENT, half, status(403))
    with pytest.raises(MissError):
        got.download(server.url.replace("//", "//me:secret@"))
    assert server.requests[0].headers["Authorization"] == "Basic " + base64.b64encode(b"me:secret").decode()
    assert all(b"secret" not in path.read_bytes() for path in got.path.parent.iterdir())


@pytest.mark.parametrize("text", ["at http://me:secret@host/a: no", "http://me:se@cret@host", "http://me:sec/ret@host"])
def test_passwords_are_hidden(text: str) -> None:
    assert "ret" not in fetch.hide_password(text)
    assert "//host" in fetch.hide_password(text)


def test_a_folder_that_cannot_be_written(mirror: Start) -> None:
    Path("folder").touch()
    with pytest.raises(TenfoldError, match=r"folder: cannot be written \(File exists\)"):
        Got().download(mirror(CONTENT).url)


def test_two_at_once_both_get_the_file(mirror: Start) -> None:
    got, server = Got(), mirror(CONTENT)
    threads = [threading.Thread(target=got.download, args=(server.url,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got.whole()


def test_a_terminal_shows_a_bar(mirror: Start) -> None:
    server = mirror(CONTENT)
    code = (
        "import sys; from pathlib import Path; from tenfold.data import fetch; "
        "fetch.download(sys.argv[1], Path('folder/got'), lambda path: None)"
    )
    inner, outer = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code, server.url],
        stdout=subprocess.PIPE,
        stderr=outer,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        check=True,
    )
    os.close(outer)
    shown = os.read(inner, 100_000).decode()
    os.close(inner)
    assert done.stdout == b""
    assert "got" in shown
    assert "kB" in shown
