"""Several hosts under torchrun: two network namespaces of this machine, joined by a virtual cable, and one disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from benchmarks.fault_injection import Started

from tests.checkout import Checkout
from tests.test_distributed import changed, of_group, prepared

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("distributed")]

CAN_MAKE_HOSTS = os.geteuid() == 0 and shutil.which("ip") is not None
PORT = 29541


class Host:
    """A network namespace, with one end of a cable."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"tenfold{os.getpid()}h{number}"
        self.device = f"tf{os.getpid() % 10**8}v{number}"
        self.address = f"10.77.0.{number + 1}"

    def command(self, *command: str) -> list[str]:
        """A command, as this host runs it."""
        return ["ip", "netns", "exec", self.name, *command]

    def pids(self) -> list[int]:
        """Of all that runs on it."""
        done = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True)
        return [int(pid) for pid in done.stdout.split()]

    def kill(self) -> None:
        """Everything at once, as when the power goes."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A clone with digits, split and tuned."""
    return prepared(tmp_path_factory.mktemp("hosts") / "project")


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other and nothing else."""
    if not CAN_MAKE_HOSTS:
        if os.environ.get("CI"):
            pytest.fail("hosts are made by root with iproute2, and the gate has both")
        pytest.skip("hosts of network namespaces are made by root, with iproute2")
    both = Host(0), Host(1)

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    try:
        for host in both:
            ip("netns", "add", host.name)
        ip("link", "add", both[0].device, "type", "veth", "peer", "name", both[1].device)
        for host in both:
            ip("link", "set", host.device, "netns", host.name)
            subprocess.run(host.command("ip", "addr", "add", f"{host.address}/24", "dev", host.device), check=True)
            for device in ("lo", host.device):
                subprocess.run(host.command("ip", "link", "set", device, "up"), check=True)
        yield both
    finally:
        for host in both:
            host.kill()
            subprocess.run(["ip", "netns", "del", host.name], check=False)


class Training(Started):
    """`torchrun` on one host."""

    def end(self, seconds: float = 120) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it does not end:\n{self.output()[-4000:]}")

    def stop(self) -> None:
        if of_group(self.process.pid):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def torchrun(*options: str) -> list[str]:
    program = str(Path(sys.executable).with_name("torchrun"))
    return [program, "--nproc-per-node=1", *options, "-m", "tenfold", "train"]


def start(
    checkout: Checkout, hosts: tuple[Host, Host], options: Callable[[Host], list[str]]
) -> tuple[Training, Training]:
    """The training on both hosts, each with options of its own."""
    first, second = (
        Training(
            checkout,
            *host.command(*torchrun("--nnodes=2", *options(host))),
            OMP_NUM_THREADS="1",
            GLOO_SOCKET_IFNAME=host.device,
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        )
        for host in hosts
    )
    return first, second


def test_two_hosts_train_as_two_processes_do_and_a_lost_one_ends_the_other(
    checkout: Checkout,
    hosts: tuple[Host, Host],
) -> None:
    def meeting(host: Host) -> list[str]:
        return [f"--node-rank={host.number}", f"--master-addr={hosts[0].address}", f"--master-port={PORT}"]

    with changed(checkout, devices=2, max_epochs=6):
        checkout.tenfold("train", OMP_NUM_THREADS="1")
    curve, weights = checkout.read("reports/train/history.csv"), (checkout.root / "models/best.ckpt").read_bytes()

    with changed(checkout, num_nodes=2, max_epochs=6):
        first, second = start(checkout, hosts, meeting)
        first.wait_for("train: epoch 2/6", 120)
        hosts[1].kill()
        assert first.end(60) != 0
        assert "another process of the training has gone" in first.output()
        assert "the training goes on after its last finished epoch" in first.output()
        second.stop()
        assert not hosts[0].pids()

        before = checkout.runs("tenfold")
        first, second = start(checkout, hosts, meeting)
        assert (first.end(), second.end()) == (0, 0), first.output() + second.output()
        assert "train: resuming after epoch" in first.output()
        assert "train: epoch 6/6" in first.output()
        assert "train: epoch" not in second.output()
        assert checkout.runs("tenfold") == before  # the interrupted run went on, and the second host made none
    assert checkout.read("reports/train/history.csv") == curve
    assert (checkout.root / "models/best.ckpt").read_bytes() == weights


def test_torchrun_starts_a_lost_process_again_and_the_training_goes_on(
    checkout: Checkout,
    hosts: tuple[Host, Host],
) -> None:
    def rendezvous(host: Host) -> list[str]:
        return [
            "--max-restarts=2",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={hosts[0].address}:{PORT + 1}",
            "--rdzv-id=tenfold",
            f"--rdzv-conf=is_host={'false' if host.number else 'true'}",  # both have one name
            f"--local-addr={host.address}",
        ]

    with changed(checkout, num_nodes=2, max_epochs=8):
        first, second = start(checkout, hosts, rendezvous)
        try:
            both = lambda: first.output() + second.output()  # noqa: E731  # either host may be rank 0
            deadline = time.monotonic() + 120
            while "train: epoch 2/8" not in both():
                assert time.monotonic() < deadline, both()
                time.sleep(0.05)
            (worker,) = psutil.Process(second.process.pid).children()
            worker.kill()
            assert (first.end(), second.end()) == (0, 0), both()
        finally:
            first.stop()
            second.stop()
        assert "train: resuming after epoch" in both()
        assert both().count("train: epoch 8/8") == 1
