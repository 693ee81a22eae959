"""The served model behind a real `mlflow models serve`."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import numpy.typing as npt
import pytest

Check = Callable[[list[dict[str, Any]], int], None]


@pytest.fixture(scope="module")
def server(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server in a folder of its own; its whole process group ends with the tests."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(saved)]
    command += ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # MLflow starts `uvicorn` by name
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"PATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(address, process, log)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):  # MLflow does not wait for its uvicorn
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urlopen(f"{address}/ping", timeout=5).close()
            return
        except (URLError, ConnectionError):
            time.sleep(0.05)
    pytest.fail(f"the server did not come up:\n{log.read_text()}")


def ask(server: str, body: object) -> tuple[int, Any]:
    """Status and JSON of one request."""
    request = Request(f"{server}/invocations", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize("count", [1, 7, 256])
def test_the_same_predictions_over_http(server: str, images: npt.NDArray[np.uint8], check: Check, count: int) -> None:
    status, answer = ask(server, {"inputs": images[:count, 0].tolist()})
    assert status == 200
    assert list(answer) == ["predictions"]
    check(answer["predictions"], count)


def changed(images: npt.NDArray[np.uint8], value: object) -> dict[str, Any]:
    """A request of four images, one pixel of the last replaced by `value`."""
    pixels = images[:4, 0].tolist()
    pixels[3][5][7] = value
    return {"inputs": pixels}


@pytest.mark.parametrize("value", [0.5, -1, 256, float("nan"), None, "7", True], ids=str)
def test_bad_pixels_are_refused_and_the_next_request_is_answered(
    server: str, images: npt.NDArray[np.uint8], check: Check, value: object
) -> None:
    status, answer = ask(server, changed(images, value))
    assert status == 400
    assert answer["error_code"] == "INVALID_PARAMETER_VALUE"
    assert answer["message"].startswith("inputs[3][5][7] is ")
    assert len(json.dumps(answer)) < 400, "no dump of the request"
    status, answer = ask(server, {"inputs": images[:4, 0].tolist()})
    assert status == 200
    check(answer["predictions"], 4)


def test_other_shapes_of_a_request_are_refused(server: str, images: npt.NDArray[np.uint8]) -> None:
    image = images[0, 0].tolist()
    for body, part in {
        "one image": ({"inputs": image}, "inputs is one image, not a list of images: send [image]"),
        "object": ({"inputs": {"image": image}}, "inputs is an object, not a list of images"),
        "nothing": ({"inputs": []}, "inputs is an empty list"),
        "instances": ({"instances": [image]}, "must be a dictionary with 'inputs' key"),
        "embeddings": ({"input": [image]}, "inputs is an object, not a list of images"),
        "columns": (
            {"dataframe_split": {"columns": ["a"], "data": [[1]]}},
            "must be a dictionary with 'inputs' key",
        ),
    }.values():
        status, answer = ask(server, body)
        assert status == 400
        assert part in answer["message"]
        assert len(json.dumps(answer)) < 400


def test_a_table_is_refused(server: str) -> None:
    request = Request(f"{server}/invocations", b"a,b\n1,2\n", {"Content-Type": "text/csv"})
    with pytest.raises(HTTPError, match="400"):
        urlopen(request, timeout=30)
