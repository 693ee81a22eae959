"""Fetching a file over HTTP from a server that may be slow, broken, or not what it seems."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from tenfold.errors import TenfoldError

if TYPE_CHECKING:
    import requests
    from rich.progress import Progress

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0
"""How long a server may send nothing, or less than `MIN_BYTES_PER_S`."""
MIN_BYTES_PER_S = 1000
BACKOFF_S = (1.0, 2.0, 4.0)
"""Waits before the second, third … try, after failures that may pass."""
MAX_BYTES = 1 << 30
"""No file is larger, packed or unpacked; one that is has no end, or is a bomb."""


class MissError(Exception):
    """A source did not give a file; the source may be down altogether."""

    def __init__(self, reason: str, source_is_down: bool = False) -> None:
        super().__init__(reason)
        self.source_is_down = source_is_down


class _PassingError(Exception):
    """A failure that may be gone at the next try."""


def download(url: str, target: Path, use: Callable[[Path], None]) -> None:
    """Bring a file to `target`, through the proxy of the environment if there is one.

    What a try gets lies in `<target>.part`. The next try goes on from there, in this process or a later one, if the
    server names the version of the file (a strong ETag, or Last-Modified) and it is still the same.

    Args:
        url: of the file.
        target: where it is put once `use` accepted it. The folder is made.
        use: is given the whole file, to verify and use it; raises `MissError` if it is the wrong one.

    Raises:
        MissError: the server did not give the file.
        TenfoldError: it cannot be written.
    """
    part, reason = target.with_name(f"{target.name}.part"), ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):  # another experiment may want the same file
            for wait in (0, *BACKOFF_S):
                time.sleep(wait)
                try:
                    _fetch_and_use(url, part, use)
                except _PassingError as error:
                    reason = str(error)
                else:
                    part.replace(target)
                    _forget(part)
                    return
    except OSError as error:
        raise TenfoldError(f"{error.filename or target}: cannot be written ({error.strerror})") from None
    raise MissError(f"{reason}; tried {1 + len(BACKOFF_S)} times", source_is_down=True)


def hide_password(text: str) -> str:
    """The text without the user names and passwords in its URLs."""
    return re.sub(r"//\S*@", "//", text)


def is_web_page(head: bytes) -> bool:
    """Whether a file begins as HTML and XML do, and no data file does."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


def _fetch_and_use(url: str, part: Path, use: Callable[[Path], None]) -> None:
    resumed = _fetch(url, part)
    try:
        use(part)
    except MissError as miss:
        _forget(part)
        if not resumed:
            raise
        raise _PassingError(str(miss)) from None  # it may be pieces of two versions: once more, from the start


def _fetch(url: str, part: Path) -> bool:
    """Fetch what is missing of a file, and say whether some of it was there before."""
    import requests

    have, version = 0, ""
    if part.is_file() and _version(part).is_file():
        origin, _, version = _version(part).read_text(encoding="utf-8").partition("\n")
        have = part.stat().st_size if origin == hide_password(url) else 0
    headers = {"Accept-Encoding": "identity"}  # else a server may pack or unpack the file on the way
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    try:
        timeout = (CONNECT_TIMEOUT_S, READ_TIMEOUT_S)
        with requests.get(url, headers=headers, stream=True, timeout=timeout) as answer:
            return _receive(answer, url, part, have)
    except requests.TooManyRedirects:
        raise MissError("redirects without end") from None
    except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema, UnicodeError) as error:
        raise MissError(f"is, or redirects to, no valid URL ({error})") from None
    except requests.exceptions.SSLError as error:
        raise MissError(f"cannot be reached safely ({_cause(error)})", source_is_down=True) from None
    except requests.ConnectTimeout:
        raise _PassingError(f"cannot be reached within {CONNECT_TIMEOUT_S:g} s") from None
    except requests.ReadTimeout:
        raise _PassingError(f"sent nothing for {READ_TIMEOUT_S:g} s") from None
    except requests.RequestException as error:
        proxy = " through the proxy" if isinstance(error, requests.exceptions.ProxyError) else ""
        raise _PassingError(f"cannot be reached{proxy} ({_cause(error)})") from None


def _cause(error: Exception) -> str:
    """What lies behind an error of requests, without the Python objects that it names."""
    for inner in (*error.args, getattr(error, "reason", None)):
        if isinstance(inner, Exception):
            return _cause(inner)
    return str(error).rpartition("): ")[2]


def _receive(answer: requests.Response, url: str, part: Path, have: int) -> bool:
    """Write the body of an answer to the part, of which `have` bytes are there; whether those were of use."""
    status = f"answered {answer.status_code} {answer.reason}"
    content_range = answer.headers.get("Content-Range", "")
    if answer.status_code == 416 and content_range == f"bytes */{have}":
        return True  # nothing is missing
    if answer.status_code == 416 or (answer.status_code == 206 and not content_range.startswith(f"bytes {have}-")):
        _forget(part)
        raise _PassingError(f"{status}, {content_range or 'no range'}, when asked for bytes from {have:,}")
    if answer.status_code >= 500 or answer.status_code in (408, 429):
        raise _PassingError(status)
    if answer.status_code not in (200, 206):
        raise MissError(status)
    have = have if answer.status_code == 206 else 0
    left, chunks = answer.raw.length_remaining, _chunks(answer)
    first = next(chunks, b"")
    if not have and is_web_page(first):  # known before it takes the place of a part
        raise MissError("is a web page")
    with part.open("ab" if have else "wb") as file, _bar(part.stem, have, left) as bar:
        if not have:
            _remember(answer, url, part)
        file.write(first)
        for chunk in chunks:
            file.write(chunk)
            bar.update(bar.task_ids[0], completed=file.tell())
            if file.tell() > MAX_BYTES:
                _forget(part)
                raise MissError(f"is larger than {MAX_BYTES:,} bytes")
    return have > 0


def _chunks(answer: requests.Response) -> Iterator[bytes]:
    """The body as it comes, in pieces however small, so that a trickle is noticed."""
    from urllib3.exceptions import HTTPError, ReadTimeoutError

    since, got = time.monotonic(), 0
    try:
        while chunk := answer.raw.read1(1 << 16):
            yield chunk
            got += len(chunk)
            if (now := time.monotonic()) - since >= READ_TIMEOUT_S:
                if got < MIN_BYTES_PER_S * READ_TIMEOUT_S:
                    raise _PassingError(f"sent only {got:,} bytes in {READ_TIMEOUT_S:g} s")
                since, got = now, 0
    except ReadTimeoutError:
        raise _PassingError(f"sent nothing for {READ_TIMEOUT_S:g} s") from None
    except HTTPError:
        left = answer.raw.length_remaining
        raise _PassingError(f"broke off ({left:,} bytes missing)" if left else "broke off") from None


def _bar(name: str, have: int, left: int | None) -> Progress:
    """A progress bar, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    bar.add_task(name, completed=have, total=None if left is None else have + left)
    return bar


def _version(part: Path) -> Path:
    """The file that names the URL of a part, and the version of the file that it is a part of."""
    return part.with_suffix(".version")


def _remember(answer: requests.Response, url: str, part: Path) -> None:
    tag = answer.headers.get("ETag", "")
    if version := tag if tag.startswith('"') else answer.headers.get("Last-Modified"):
        _version(part).write_text(f"{hide_password(url)}\n{version}", encoding="utf-8")
    else:
        _version(part).unlink(missing_ok=True)


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _version(part).unlink(missing_ok=True)
