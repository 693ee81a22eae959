"""The body of a request in, status and body of the answer out: MLflow's protocol, the same behind each server."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import Any

from .classifier import Classifier
from .pixels import Refused, name

LARGEST = 32 * 1024 * 1024
"""Bytes of a request."""
KEYS = ("inputs", "params")
JSON, NPY = "application/json", "application/x-npy"


def respond(classifier: Classifier, body: bytes, content_type: str | None) -> tuple[HTTPStatus, str]:
    """Answer a request of `POST /invocations`.

    Args:
        classifier: the model.
        body: JSON, `{"inputs": [image, ...], "params": {...}}`, see `Classifier.answer`; or a NumPy file.
        content_type: the header: `application/json`, or `application/x-npy`, where params follow it as in
            `application/x-npy; return=label`. It must be one of these: so no page of another site can ask.

    Returns:
        200 and `{"predictions": [...]}`; or 400, 413 or 415 and `{"error_code": ..., "message": ...}`, a sentence.
    """
    mime, *details = (part.strip() for part in (content_type or "").split(";"))
    try:
        params = _object([_pair(detail) for detail in details if detail])
    except Refused as error:
        return refuse(HTTPStatus.BAD_REQUEST, str(error))
    npy, charset = mime.lower() == NPY, str(params.pop("charset", "utf-8"))
    if not (npy or mime.lower() == JSON) or charset.lower() not in {"utf-8", "utf8"} or (params and not npy):
        found = repr(content_type[:100]) if content_type else "missing"
        return refuse(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the header Content-Type is {found}, not {JSON} (in UTF-8) or {NPY}"
        )
    if len(body) > LARGEST:
        return too_large(len(body))
    try:
        predictions = classifier.answer_npy(body, params) if npy else classifier.answer(*_parse(body))
    except Refused as error:
        return refuse(HTTPStatus.BAD_REQUEST, str(error))
    return HTTPStatus.OK, json.dumps({"predictions": predictions})


def too_large(found: int) -> tuple[HTTPStatus, str]:
    """The answer to a body of more than `LARGEST` bytes."""
    return refuse(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the request has {found:,} bytes; at most {LARGEST:,} are taken: send fewer images at a time",
    )


def refuse(status: HTTPStatus, message: str) -> tuple[HTTPStatus, str]:
    """An answer without predictions."""
    code = "INVALID_PARAMETER_VALUE" if status == HTTPStatus.BAD_REQUEST else status.name
    return status, json.dumps({"error_code": code, "message": message})


def _pair(detail: str) -> tuple[str, Any]:
    """A parameter of the header; a number if it looks like one."""
    key, _, value = detail.partition("=")
    value = value.strip().strip('"')
    return key.strip().lower(), int(value) if re.fullmatch(r"-?[0-9]{1,9}", value) else value


def _parse(body: bytes) -> tuple[Any, dict[str, Any]]:
    """Inputs and params of a request."""
    expected = 'Send {"inputs": [image, ...]}, and "params" if you like'
    try:
        request = json.loads(body, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise Refused(f"the request is no UTF-8 (byte {error.start}). {expected}") from None
    except RecursionError:
        raise Refused(f"the request is nested too deep. {expected}") from None
    except ValueError as error:
        raise Refused(f"the request is no JSON: {error}. {expected}") from None
    if not isinstance(request, dict) or "inputs" not in request:
        found = f"an object of {_some(request)}" if isinstance(request, dict) else name(request)
        raise Refused(f"the request is {found}, not an object with inputs. {expected}")
    if unknown := sorted(set(request).difference(KEYS)):
        raise Refused(f"the request has {_some(unknown)}, which is unknown. {expected}")
    params = request.get("params")
    if not isinstance(params, dict | None):
        raise Refused(f"params is {name(params)}, not an object")
    return request["inputs"], params or {}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; a key that is there twice could be read in two ways."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Refused(f"the request has {twice!r:.40} twice")
    return found


def _some(keys: Any) -> str:
    """A few of the keys, in few characters."""
    return ", ".join(f"{key!r:.40}" for key in list(keys)[:3]) + (", …" if len(keys) > 3 else "") or "nothing"
