"""The server that people start with `tenfold serve`: a model, and a page to draw on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tenfold.serving.protocol import LARGEST, refuse, too_large

PAGE = Path(__file__).with_name("page.html")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page may load nothing, and ask only its own server."""
WORKERS = 4
"""Requests that are answered side by side: each may take a picture apart."""
PATIENCE_S = 60
"""How long a request may take to arrive, as with MLflow's server."""
Respond = Callable[[Any, bytes, str | None], tuple[HTTPStatus, str]]


def make(classifier: Any, respond: Respond, name: str) -> Starlette:
    """The application.

    Args:
        classifier: a `Classifier`.
        respond: `protocol.respond`, of the same code.
        name: of the model, for people.
    """
    about = {
        "name": name,
        "classes": classifier.classes,
        "image_shape": classifier.shape,
        "pictures": "handwriting" if classifier.handwriting else "resize",
    }

    workers = ThreadPoolExecutor(WORKERS)

    async def invocations(request: Request) -> Response:
        try:
            async with asyncio.timeout(PATIENCE_S):
                body = await _body(request)
        except ClientDisconnect:
            return Response()  # nobody is there to read it
        except TimeoutError:
            return _json(*refuse(HTTPStatus.REQUEST_TIMEOUT, f"the request was not there after {PATIENCE_S} seconds"))
        if isinstance(body, int):
            return _json(*too_large(body))
        if request.headers.get("content-encoding", "identity") != "identity":
            return _json(
                *refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the request is packed (Content-Encoding); send it as it is")
            )
        content_type = request.headers.get("content-type")
        loop = asyncio.get_running_loop()
        return _json(*await loop.run_in_executor(workers, respond, classifier, body, content_type))

    async def page(request: Request) -> Response:
        headers = {
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers=headers)

    async def model(request: Request) -> Response:
        return _json(HTTPStatus.OK, json.dumps(about, ensure_ascii=False))

    async def ping(request: Request) -> Response:
        return _json(HTTPStatus.OK, "\n")

    routes = [
        Route("/", page),
        Route("/model", model),
        Route("/ping", ping),
        Route("/health", ping),
        Route("/invocations", invocations, methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={404: _missing, 405: _missing, Exception: _failed})


async def _body(request: Request) -> bytes | int:
    """The body, or its size if that is too large: it is read to the end all the same, or the answer would be lost."""
    size, parts = 0, []
    async for part in request.stream():
        size += len(part)
        if size <= LARGEST:
            parts.append(part)
        else:
            parts.clear()
    return b"".join(parts) if size <= LARGEST else size


def _json(status: HTTPStatus, body: str) -> Response:
    return Response(body, status, media_type="application/json")


async def _missing(request: Request, error: Exception) -> Response:
    status = HTTPStatus(getattr(error, "status_code", HTTPStatus.NOT_FOUND))
    return _json(*refuse(status, f"there is no {request.method} {request.url.path:.100}; ask POST /invocations"))


async def _failed(request: Request, error: Exception) -> Response:
    return _json(*refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says why"))
