"""What `mlflow models build-docker` would build, without a Docker engine: its context, installed and started."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import numpy.typing as npt
import pytest

from tests.servers import free_port, running

Check = Callable[[list[dict[str, Any]], int], None]


@pytest.mark.timeout(600)
def test_the_context_serves_in_a_new_environment_without_torch(
    saved: Path, images: npt.NDArray[np.uint8], check: Check, tmp_path: Path
) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "MLFLOW", "VIRTUAL"))}
    context = tmp_path / "context"
    command = ["-m", "mlflow", "models", "generate-dockerfile", "--env-manager", "local"]
    subprocess.run([sys.executable, *command, "-m", saved, "-d", context], check=True, cwd=tmp_path, env=kept)
    dockerfile = (context / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall("pip install (.*)", dockerfile) == [f"mlflow=={_pin(context, 'mlflow')}"]
    assert sum(file.stat().st_size for file in context.rglob("*") if file.is_file()) < 1_000_000

    environment = tmp_path / "environment"
    requirements = str(context / "model_dir/model/requirements.txt")
    uv = str(Path(sys.executable).with_name("uv"))  # in seconds, where pip takes a minute
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True, env=kept)
    python = str(environment / "bin/python")
    install = [uv, "pip", "install", "--quiet", "--system-certs", "--python", python, "-r", requirements]
    subprocess.run(install, check=True, env=kept)
    installed = {path.name for path in (environment / "lib").glob("python*/site-packages/*")}
    assert "onnxruntime" in installed
    assert not {"torch", "torchvision", "pytorch_lightning", "tenfold"} & installed

    port = free_port()
    entry = f"from mlflow.pyfunc.scoring_server.app import app; import uvicorn; uvicorn.run(app, port={port})"
    served = kept | {"__pyfunc_model_path__": str(context / "model_dir/model")}
    address = f"http://127.0.0.1:{port}"
    # as the image's entry point does behind nginx
    with running([python, "-I", "-c", entry], f"{address}/ping", tmp_path, served, tmp_path / "log"):
        body = json.dumps({"inputs": images[:3, 0].tolist()}).encode()
        request = Request(f"{address}/invocations", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=30) as answer:
            check(json.load(answer)["predictions"], 3)


def _pin(context: Path, name: str) -> str:
    text = (context / "model_dir/model/requirements.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{name}==(.*)$", text, re.MULTILINE)
    assert found
    return found[1]
