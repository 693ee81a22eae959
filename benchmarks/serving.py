"""The served model beside MLflow's stock PyTorch flavour of the same network: start, requests, memory; and a soak."""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import psutil

import lab

CLIENTS = 8
TARGETS = {"mlflow": 4.0, "tenfold": 2.5, "ratio": 1.25, "p99": 15.0, "images": 50_000.0, "memory": 300.0}
"""Seconds, seconds, times as many requests, ms, images per second, MB."""
JSON, NPY = "application/json", "application/x-npy; return=label"
Request = tuple[bytes, str]

SAVE_STOCK = """
import sys
import numpy as np
import mlflow.pytorch
from mlflow.models import infer_signature
from pathlib import Path
from tenfold.modeling import checkpoint
network, spec = checkpoint.load_network(Path("models/best.ckpt"))
example = np.zeros((1, spec.channels, *spec.image_size), np.uint8)
signature = infer_signature(example, np.zeros((1, len(spec.classes)), np.float32))
mlflow.pytorch.save_model(network.eval(), sys.argv[1], signature=signature, serialization_format="pickle")
"""


@contextmanager
def server(project: lab.Checkout, *command: str) -> Iterator[tuple[int, float, psutil.Process]]:
    """A server in a fresh process: its port, the seconds until it answered, and the process that listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = lab.clean_environment() | {"MLFLOW_TRACKING_URI": f"sqlite:///{project.root / 'mlflow.db'}"}
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--port", str(port)],
        cwd=project.root,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while True:
            if process.poll() is not None or time.perf_counter() - started > 120:
                raise SystemExit(f"error: {' '.join(command)} did not come up")
            try:
                urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
                break
            except (URLError, ConnectionError):
                time.sleep(0.02)
        seconds = time.perf_counter() - started
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        listening = [one for one in family if any(found.laddr.port == port for found in one.net_connections("inet"))]
        yield port, seconds, listening[0]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Client:
    """One connection that is kept; plain sockets, since a heavier client would take the server's cores."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, body: bytes, content_type: str) -> int:
        """The status of one request."""
        head = [
            "POST /invocations HTTP/1.1",
            "Host: x",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(body)}",
        ]
        self.socket.sendall("\r\n".join([*head, "", ""]).encode() + body)
        received = b""
        while True:
            part = self.socket.recv(1 << 20)
            if not part:
                raise ConnectionError(f"the server closed the connection after {received[:200]!r}")
            received += part
            head_end = received.find(b"\r\n\r\n")
            if head_end >= 0:
                length = int(received[:head_end].lower().split(b"content-length:")[1].split(b"\r\n")[0])
                if len(received) >= head_end + 4 + length:
                    return int(received.split(b" ", 2)[1])


def load(port: int, request: Request, seconds: float, clients: int = CLIENTS) -> tuple[float, float]:
    """Requests per second, and the 99th percentile of their milliseconds, of clients that ask without pause."""

    def run(_: int) -> list[float]:
        client, took, end = Client(port), [], time.perf_counter() + seconds
        while (started := time.perf_counter()) < end:
            if (status := client.ask(*request)) != 200:
                raise SystemExit(f"error: status {status}")
            took.append(time.perf_counter() - started)
        return took

    with ThreadPoolExecutor(clients) as pool:
        took = sorted(value for values in pool.map(run, range(clients)) for value in values)
    return len(took) / seconds, 1000 * took[int(0.99 * len(took))]


def npy(images: np.ndarray) -> bytes:
    """Images as a NumPy file."""
    file = io.BytesIO()
    np.save(file, images)
    return file.getvalue()


def soak(process: psutil.Process, port: int, images: np.ndarray, minutes: float) -> tuple[Counter[int], list[float]]:
    """Statuses of requests, one in ten of them bad, and the server's MB every five seconds."""
    good: list[Request] = [
        (json.dumps({"inputs": images[:1, 0].tolist()}).encode(), JSON),
        (json.dumps({"inputs": images[:64, 0].tolist(), "params": {"top_k": 3}}).encode(), JSON),
        (json.dumps({"inputs": [base64.b64encode(npy(images[:100, 0])).decode()]}).encode(), JSON),
        (npy(images[:500, 0]), NPY),
    ]
    bad: list[Request] = [
        (b'{"inputs": [[[', JSON),
        (json.dumps({"inputs": (images[:1, 0] / 255).tolist()}).encode(), JSON),
        (json.dumps({"inputs": ["iVBORw0KGgo="]}).encode(), JSON),
        (b"[" * 50_000, JSON),
        (npy(images[:3, 0])[:-5], NPY),
        (b"a,b", "text/csv"),
        (b"0" * 3_000_000, JSON),
    ]
    end = time.time() + 60 * minutes

    def run(number: int) -> Counter[int]:
        statuses, client, chance = Counter[int](), Client(port), random.Random(number)
        while time.time() < end:
            statuses[client.ask(*chance.choice(bad if chance.random() < 0.1 else good))] += 1
        return statuses

    memory = []
    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(run, number) for number in range(CLIENTS)]
        while time.time() < end:
            memory.append(process.memory_info().rss / 1e6)
            time.sleep(5)
        total = Counter[int]()
        for one in running:
            total.update(one.result())
    return total, memory


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="starts of each server, in turns")
    parser.add_argument("--seconds", type=float, default=5, help="of each load")
    parser.add_argument("--soak", type=float, default=5, help="minutes, of each server")
    chosen = parser.parse_args()
    with lab.checkout("balanced") as project:
        project.run("dvc", "repro")
        stock = project.root.parent / "stock"
        project.run(sys.executable, "-c", SAVE_STOCK, str(stock))
        images = np.load(project.root / "data/split/test/images.npy")
        serve = ("mlflow", "models", "serve", "--env-manager", "local", "--model-uri")
        ways = {
            "stock PyTorch, `mlflow models serve`": ((*serve, str(stock)), images[:1].tolist(), images[:256].tolist()),
            "Tenfold, `mlflow models serve`": (
                (*serve, "models:/tenfold-mnist@champion"),
                images[:1, 0].tolist(),
                images[:256, 0].tolist(),
            ),
            "Tenfold, `tenfold serve`": (("tenfold", "serve"), images[:1, 0].tolist(), images[:256, 0].tolist()),
        }
        found: dict[str, dict[str, list[float]]] = {way: {} for way in ways}
        for _ in range(chosen.rounds):
            for way, (command, one, many) in ways.items():
                with server(project, *command) as (port, seconds, process):
                    rate, p99 = load(port, (json.dumps({"inputs": one}).encode(), JSON), chosen.seconds)
                    batches, _ = load(port, (json.dumps({"inputs": many}).encode(), JSON), chosen.seconds, 2)
                    compact = 0.0
                    if way.startswith("Tenfold"):
                        compact = 1000 * load(port, (npy(images[:1000, 0]), NPY), chosen.seconds, 3)[0]
                    memory = process.memory_info().rss / 1e6
                for name, value in zip(
                    ("up", "rate", "p99", "batches", "images", "memory"),
                    (seconds, rate, p99, 256 * batches, compact, memory),
                    strict=True,
                ):
                    found[way].setdefault(name, []).append(value)
                print(f"{way}: up {seconds:.2f} s, {rate:.0f}/s, p99 {p99:.1f} ms, {compact:,.0f} images/s", flush=True)
        soaked = {}
        for way in list(ways)[1:]:
            with server(project, *ways[way][0]) as (port, _, process):
                soaked[way] = soak(process, port, images, chosen.soak)
    first = next(iter(found))
    rows = [
        [
            way,
            lab.spread(values["up"]),
            lab.spread(values["rate"], 0),
            f"{statistics.median(values['rate']) / statistics.median(found[first]['rate']):.2f}",
            lab.spread(values["p99"], 1),
            lab.spread(values["batches"], 0),
            lab.spread(values["images"], 0) if any(values["images"]) else "–",
            f"{max(values['memory']):.0f}",
        ]
        for way, values in found.items()
    ]
    missed = [
        f"{way}: {name}"
        for way, values in list(found.items())[1:]
        for name, reached in {
            "up": statistics.median(values["up"]) <= TARGETS["mlflow" if "mlflow" in way else "tenfold"],
            "ratio": statistics.median(values["rate"]) >= TARGETS["ratio"] * statistics.median(found[first]["rate"]),
            "p99": statistics.median(values["p99"]) <= TARGETS["p99"],
            "images": statistics.median(values["images"]) >= TARGETS["images"],
            "memory": max(values["memory"]) <= TARGETS["memory"],
        }.items()
        if not reached
    ]
    soaks = []
    for way, (statuses, memory) in soaked.items():
        after_a_minute = memory[12] if len(memory) > 12 else memory[0]
        if any(status >= 500 for status in statuses) or memory[-1] > 1.05 * after_a_minute:
            missed.append(f"{way}: soak")
        answers = ", ".join(f"{count:,} answers {status}" for status, count in sorted(statuses.items()))
        soaks.append(
            f"{way}: {answers}; {after_a_minute:.0f} MB after a minute, {memory[-1]:.0f} MB at the end, at most "
            f"{max(memory):.0f} MB."
        )
    lab.publish(
        "serving",
        f"`benchmarks/serving.py`: {chosen.rounds} fresh processes of each, in turns; {chosen.seconds:g} s of each "
        f"load. Single images: {CLIENTS} clients with JSON of 28×28 numbers. 256 images: 2 clients, JSON. Compact: 3 "
        "clients with NumPy files of 1,000 images, labels returned. Clients and server share the cores. Median "
        "(lowest–highest).",
        [
            "",
            "up, s",
            "single images/s",
            "of stock",
            "p99, ms",
            "256 in JSON, images/s",
            "compact, images/s",
            "MB at most",
        ],
        rows,
        f"Soak, {chosen.soak:g} minutes each, {CLIENTS} clients, one request in ten bad. {' '.join(soaks)}\n\n"
        f"Targets: up within {TARGETS['mlflow']:g} s and {TARGETS['tenfold']:g} s, "
        f"{TARGETS['ratio']} times the requests of stock, p99 {TARGETS['p99']:g} ms, "
        f"{TARGETS['images']:,.0f} images/s, {TARGETS['memory']:.0f} MB. Missed: {'; '.join(missed) or 'none'}.",
    )
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
