"""Several processes on one machine, as `dvc repro` and torchrun start them: real processes, gloo, a real store."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from benchmarks.fault_injection import Started

from tenfold.modeling.networks import NetworkSpec, build
from tenfold.tracking.runs import MODEL
from tests.checkout import PROJECT, Checkout, clone, commit

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("distributed")]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A clone with digits, split and tuned."""
    return prepared(tmp_path_factory.mktemp("distributed") / "project")


def prepared(folder: Path) -> Checkout:
    """A clone with digits, split and tuned; 127 validation images, which two processes cannot halve."""
    made = clone(folder)
    made.edit("dataset: mnist", "dataset: digits")
    made.edit("val_size: auto", "val_size: 127")
    made.edit("max_epochs: 4", "max_epochs: 2")
    made.edit("learning_rate: auto", "learning_rate: 0.01")
    made.edit("batch_size: auto", "batch_size: 32")
    made.run("dvc", "repro", "tune")
    commit(made, "Digits, tuned")
    return made


@contextmanager
def changed(checkout: Checkout, **train: object) -> Iterator[None]:
    """With other values of keys of `train`; afterwards everything tracked is as it was."""
    for key, value in train.items():
        checkout.edit(rf"^  {key}: .*", f"  {key}: {value}")
    try:
        yield
    finally:
        checkout.run("git", "checkout", "-q", ".")


def history(checkout: Checkout) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(checkout.read("reports/train/history.csv"))))


@pytest.mark.parametrize("strategy", ["auto", "sharded"])
def test_two_processes_from_dvc_repro(checkout: Checkout, strategy: str) -> None:
    """One run, weights saved once, and metrics over every image exactly once: as one process measures them."""
    before = checkout.runs("tenfold")
    with changed(checkout, devices=2, strategy=strategy, eval_batch_size=63):  # of 64 images on one, 63 on the other
        output = checkout.run("dvc", "repro", "evaluate", OMP_NUM_THREADS="1")
        measured = json.loads(checkout.read("reports/metrics.json"))["val"]["acc"]
    assert output.count("train: epoch 1/2") == 1
    (new,) = set(checkout.runs("tenfold")) - set(before)
    run = checkout.client().get_run(new)
    assert run.info.status == "FINISHED"
    assert run.data.params["train.devices"] == "2"
    assert MODEL in run.data.tags
    rows = history(checkout)
    batches = json.loads(checkout.read("data/split/summary.json"))["counts"]["train"] // 64
    assert [int(row["step"]) for row in rows] == [batches, 2 * batches]
    best = max(float(row["val/acc"]) for row in rows)
    assert best * 127 == pytest.approx(round(best * 127), abs=1e-3)
    assert measured == pytest.approx(best, abs=1.01 / 127)  # validation is in bf16, evaluation in full precision
    assert best > 0.5


def test_a_sharded_training_goes_on_after_a_kill(checkout: Checkout) -> None:
    with changed(checkout, devices=2, strategy="sharded", max_epochs=4):
        checkout.tenfold("train", OMP_NUM_THREADS="1")
        expected = (checkout.root / "models/best.ckpt").read_bytes()
        with started(checkout) as training:
            training.wait_for("train: epoch 2/4", 120)
            kill_tree(training.process.pid)
            training.process.wait(60)
        output = checkout.tenfold("train", OMP_NUM_THREADS="1")
        assert "train: resuming after epoch" in output
        assert (checkout.root / "models/best.ckpt").read_bytes() == expected


def test_a_rank_that_dies_ends_all_and_leaves_no_process(checkout: Checkout) -> None:
    with changed(checkout, devices=2, max_epochs=200), started(checkout) as training:
        training.wait_for("train: epoch 1/200", 120)
        (worker,) = psutil.Process(training.process.pid).children()
        worker.send_signal(signal.SIGKILL)
        assert training.process.wait(60) != 0
    assert not of_group(training.process.pid)


def test_a_rank_that_dies_at_its_start_is_told_of(checkout: Checkout) -> None:
    with changed(checkout, devices=2), started(checkout) as training:
        worker = first_child(training.process.pid)
        worker.send_signal(signal.SIGKILL)
        assert training.process.wait(60) != 0
        training.wait_for("terminated with code -9", 5)
    assert not of_group(training.process.pid)


def first_child(pid: int) -> psutil.Process:
    """The second process of a training, as soon as there is one (git, which is asked as well, is none)."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children():
            with suppress(psutil.Error):
                if child.environ().get("LOCAL_RANK") == "1":
                    return child
        time.sleep(0.02)
    raise AssertionError("no second process")


def test_a_port_in_use_is_an_error_and_no_hang(checkout: Checkout) -> None:
    with socket.socket() as taken, changed(checkout, devices=2):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        output = checkout.tenfold("train", status=None, MASTER_PORT=port, MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")
    assert "error: " in output
    assert f"port {port}" in output
    assert "MASTER_PORT" in output


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "sharded"}, "strategy 'sharded' divides a network among several devices, and devices is 1"),
        ({"strategy": "dp"}, "'dp' is gone from Lightning 2"),
        ({"strategy": "fsdp", "devices": 2, "accelerator": "cpu"}, "strategy 'fsdp' needs GPUs, and accelerator is"),
    ],
)
def test_what_cannot_be_is_refused(checkout: Checkout, settings: dict[str, Any], message: str) -> None:
    with changed(checkout, **settings):
        output = checkout.tenfold("train", status=1, OMP_NUM_THREADS="1")
    assert message in output
    assert "Traceback" not in output


def sizes(checkout: Checkout, width: int) -> list[dict[str, int]]:
    script = str(PROJECT / "tests/sharded_sizes.py")
    checkout.run(sys.executable, script, str(width), OMP_NUM_THREADS="1")
    return [json.loads(checkout.read(f"sizes-{rank}.json")) for rank in (0, 1)]


def test_weights_gradients_and_optimizer_state_are_really_divided(checkout: Checkout) -> None:
    """As the network grows, each of two processes holds half of it; AdamW keeps two values for each weight."""
    for width in (8, 32):
        whole = parameters(width)
        halves = sizes(checkout, width)
        for kind, everything in {"weights": whole, "gradients": whole, "optimizer": 2 * whole}.items():
            parts = [half[kind] for half in halves]
            assert sum(parts) == everything
            assert max(parts) < 0.52 * everything, kind
    for rank in (0, 1):
        (checkout.root / f"sizes-{rank}.json").unlink()


def parameters(width: int) -> int:
    spec = NetworkSpec("compact", width, 0.0, 1, (28, 28), tuple("0123456789"), (0.1,), (0.3,))
    return sum(parameter.numel() for parameter in build(spec).parameters())


@contextmanager
def started(checkout: Checkout) -> Iterator[Started]:
    """The train stage in a process group of its own."""
    training = Started(checkout, sys.executable, "-m", "tenfold", "train", OMP_NUM_THREADS="1")
    try:
        yield training
    finally:
        if of_group(training.process.pid):
            os.killpg(training.process.pid, signal.SIGKILL)
        training.process.wait()


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all under it."""
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        process.kill()


def of_group(group: int) -> list[psutil.Process]:
    """What still runs of a process group."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found
