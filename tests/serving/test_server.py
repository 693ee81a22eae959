"""The served model behind real servers: `mlflow models serve` and `tenfold serve`."""

import base64
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.checkout import PROJECT
from tests.servers import free_port, running

Check = Callable[[list[dict[str, Any]], int], None]


SERVERS = {
    "mlflow": ["mlflow", "models", "serve", "--env-manager", "local", "--model-uri"],
    "tenfold": ["tenfold", "serve", "--model"],
}


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server in a folder of its own; its whole process group ends with the tests."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    command = [sys.executable, "-m", *SERVERS[request.param], str(saved), "--host", "127.0.0.1", "--port", str(port)]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # MLflow starts `uvicorn` by name
    where, address = PROJECT if request.param == "tenfold" else folder, f"http://127.0.0.1:{port}"
    with running(command, f"{address}/ping", where, os.environ | {"PATH": path}, folder / "log"):
        yield address


def post(server: str, body: bytes, content_type: str | None = "application/json") -> tuple[int, Any]:
    """Status and JSON of one request."""
    request = Request(f"{server}/invocations", body, {"Content-Type": content_type} if content_type else {})
    try:
        with urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def ask(server: str, body: object) -> tuple[int, Any]:
    return post(server, json.dumps(body).encode())


@pytest.mark.parametrize("count", [1, 7, 256])
def test_the_same_predictions_over_http(server: str, images: npt.NDArray[np.uint8], check: Check, count: int) -> None:
    status, answer = ask(server, {"inputs": images[:count, 0].tolist()})
    assert status == 200
    assert list(answer) == ["predictions"]
    check(answer["predictions"], count)


def test_a_numpy_file_as_it_is(server: str, images: npt.NDArray[np.uint8], check: Check) -> None:
    file = io.BytesIO()
    np.save(file, images[:, 0])
    status, answer = post(server, file.getvalue(), "application/x-npy")
    assert status == 200
    check(answer["predictions"], 256)
    labels = [found["label"] for found in answer["predictions"]]
    assert post(server, file.getvalue(), "application/x-npy; return=label") == (200, {"predictions": labels})
    status, answer = post(server, file.getvalue(), "application/x-npy; top_k=3")
    assert [len(found["probabilities"]) for found in answer["predictions"]] == [3] * 256


def test_params(server: str, images: npt.NDArray[np.uint8]) -> None:
    request = {"inputs": images[:2, 0].tolist(), "params": {"top_k": 1}}
    status, answer = ask(server, request)
    assert status == 200
    for found in answer["predictions"]:
        assert found["probabilities"] == {found["name"]: found["probability"]}


def changed(images: npt.NDArray[np.uint8], value: object) -> list[Any]:
    """Four images, one pixel of the last replaced by `value`."""
    pixels: list[Any] = images[:4, 0].tolist()
    pixels[3][5][7] = value
    return pixels


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nhello").decode()
IMAGE = [[0] * 28] * 28
BAD: dict[str, tuple[bytes, str | None, int, str]] = {
    "no JSON": (b'{"inputs": [[[0, 0', "application/json", 400, "the request is no JSON"),
    "much that is no JSON": (b"[" + b"0," * 2_000_000, "application/json", 400, "the request is no JSON"),
    "no UTF-8": (b'{"inputs": "\xff"}', "application/json", 400, "the request is no UTF-8"),
    "nothing": (b"", "application/json", 400, "the request is no JSON"),
    "too deep": (b'{"inputs": ' + b"[" * 100_000, "application/json", 400, "the request is nested too deep"),
    "a list": (b"[1, 2]", "application/json", 400, "the request is a list, not an object with inputs"),
    "instances": (b'{"instances": []}', "application/json", 400, "an object of 'instances', not an object with inputs"),
    "columns": (b'{"dataframe_split": {}}', "application/json", 400, "not an object with inputs"),
    "more": (b'{"inputs": [], "extra": 1}', "application/json", 400, "the request has 'extra', which is unknown"),
    "one image": (json.dumps({"inputs": IMAGE}).encode(), "application/json", 400, "inputs is one image, not a list"),
    "empty": (b'{"inputs": []}', "application/json", 400, "inputs is an empty list"),
    "ragged": (b'{"inputs": [[[0, 1], [0]]]}', "application/json", 400, "inputs[0] is rows of unequal length"),
    "no image file": (json.dumps({"inputs": [PNG]}).encode(), "application/json", 400, "inputs[0] is"),
    "params": (b'{"inputs": [], "params": 3}', "application/json", 400, "params is 3, not an object"),
    "an unknown param": (
        json.dumps({"inputs": [IMAGE], "params": {"top_n": 1}}).encode(),
        *("application/json", 400, "params has 'top_n', which is unknown"),
    ),
    "params twice": (
        b'{"inputs": [], "params": {"top_k": 1, "top_k": 2}}',
        *("application/json", 400, "the request has 'top_k' twice"),
    ),
    "params of the type twice": (
        b"",
        *("application/x-npy; return=label; return=full", 400, "the request has 'return' twice"),
    ),
    "a lone surrogate": (
        json.dumps({"inputs": [IMAGE], "params": {"\ud800": 1}}).encode(),
        *("application/json", 400, "params has "),
    ),
    "a param of the type": (b"{}", "application/json; return=label", 415, "the header Content-Type is"),
    "a long number": (b"", "application/x-npy; top_k=" + "9" * 5000, 400, "params.top_k is a string"),
    "a charset that is a number": (b"{}", "application/json; charset=8", 415, "the header Content-Type is"),
    "many lists": (b'{"inputs": [' + b"[]," * 20_000 + b"[]]}", "application/json", 400, "inputs has 20,001 images"),
    "100 MB": (b'{"inputs": [' + b" " * 100_000_000, "application/json", 413, "the request has 100,000,012 bytes"),
    "a table": (b"a,b\n1,2\n", "text/csv", 415, "the header Content-Type is 'text/csv', not application/json"),
    "a form": (b"inputs=1", None, 415, "the header Content-Type is 'application/x-www-form-urlencoded'"),
    "another charset": (b"{}", "application/json; charset=latin-1", 415, "the header Content-Type is"),
    "no NumPy file": (b"hello", "application/x-npy", 400, "inputs[0] is a damaged NumPy file"),
}


@pytest.mark.parametrize(("body", "content_type", "status", "message"), BAD.values(), ids=BAD)
def test_bad_requests_are_refused_in_short_and_the_next_is_answered(
    server: str,
    images: npt.NDArray[np.uint8],
    check: Check,
    body: bytes,
    content_type: str | None,
    status: int,
    message: str,
) -> None:
    found, answer = post(server, body, content_type)
    assert found == status
    assert list(answer) == ["error_code", "message"]
    assert message in answer["message"]
    assert len(json.dumps(answer)) < 400, "no dump of the request"
    status, answer = ask(server, {"inputs": images[:4, 0].tolist()})
    assert status == 200
    check(answer["predictions"], 4)


@pytest.mark.parametrize("value", [0.5, -1, 256, float("nan"), None, "7", True], ids=str)
def test_bad_pixels_are_refused(server: str, images: npt.NDArray[np.uint8], value: object) -> None:
    status, answer = ask(server, {"inputs": changed(images, value)})
    assert status == 400
    assert answer["error_code"] == "INVALID_PARAMETER_VALUE"
    assert answer["message"].startswith("inputs[3][5][7] is ")
    assert len(json.dumps(answer)) < 400, "no dump of the request"


def test_many_clients_at_once(server: str, images: npt.NDArray[np.uint8], check: Check) -> None:
    with ThreadPoolExecutor(8) as clients:
        for status, answer in clients.map(lambda _: ask(server, {"inputs": images[:9, 0].tolist()}), range(64)):
            assert status == 200
            check(answer["predictions"], 9)


def test_others_are_answered_while_a_large_picture_is_taken_apart(
    server: str, images: npt.NDArray[np.uint8], check: Check
) -> None:
    file = io.BytesIO()
    picture = Image.new("1", (6900, 6900), 1)
    picture.paste(0, (3000, 2000, 3600, 5000))
    picture.save(file, "TIFF", compression="group4")
    large = base64.b64encode(file.getvalue()).decode()
    with ThreadPoolExecutor(1) as other:
        answered = other.submit(ask, server, {"inputs": [large]})
        status, answer = ask(server, {"inputs": images[:1, 0].tolist()})
        assert not answered.done(), "it waited for it"
        assert status == 200
        check(answer["predictions"], 1)
        assert answered.result()[0] == 200
    status, answer = ask(server, {"inputs": [large, large]})
    assert status == 400
    assert "at most 50,000,000 pixels are decoded at once" in answer["message"]


def test_health(server: str) -> None:
    for path in ("ping", "health"):
        with urlopen(f"{server}/{path}", timeout=30) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("server", ["tenfold"], indirect=True)
def test_the_page_may_load_nothing_and_knows_the_model(server: str) -> None:
    with urlopen(f"{server}/", timeout=30) as answer:
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "<canvas" in answer.read().decode()
    with urlopen(f"{server}/model", timeout=30) as answer:
        about = json.load(answer)
    assert about["image_shape"] == [1, 28, 28]
    assert about["pictures"] == "handwriting"
    assert about["classes"][7] == "seven"
    for path, method in (("nothing", "GET"), ("invocations", "GET"), ("model", "POST")):
        with pytest.raises(HTTPError, match=r"40[45]") as raised:
            urlopen(Request(f"{server}/{path}", method=method), timeout=30)
        assert "ask POST /invocations" in json.load(raised.value)["message"]
