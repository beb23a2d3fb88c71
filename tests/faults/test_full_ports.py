"""Idle connections to each port of a process with few descriptors: sends and health checks continue."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson
import psutil
import pytest

from cluster.client import Producer
from tests.eventually import LIMIT_S
from tests.ports import free_port

pytestmark = [pytest.mark.faults, pytest.mark.slow]

REPO = Path(__file__).parents[2]
MANY_FILES = {"commit_log_file_bytes": 1 << 20, "consume_queue_file_bytes": 40_000}
HALF_A_FILE = b"x" * (1 << 19)


@contextmanager
def cluster(root: Path, limit: int, *, gateway_port: int = 0) -> Iterator[tuple[psutil.Process, str]]:
    """Run all services in one process with a hard limit of descriptors; yield it and the nameserver."""
    given = [f"--store={key}={value}" for key, value in MANY_FILES.items()]
    # the HA port is open, too
    given += ["--broker=replication=async", f"--broker=ha_listen_port={free_port()}"]
    command = [
        "prlimit", f"--nofile={limit}", sys.executable, "-m", "cluster.standalone", "--json", "--flush=async",
        f"--store-root={root}", "--nameserver-port=0", "--broker-port=0", f"--gateway-port={gateway_port}",
        *given,
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield psutil.Process(process.pid), orjson.loads(process.stdout.readline())["nameserver"]
        finally:
            process.terminate()


def ports_of(process: psutil.Process) -> list[int]:
    """Return all ports on which the process listens."""
    found = process.net_connections("tcp")
    return sorted(each.laddr.port for each in found if each.status == psutil.CONN_LISTEN)


def fill(ports: list[int], count: int) -> list[socket.socket]:
    """Open idle connections to ports; every second one has sent a byte."""
    found = []
    for number in range(count):
        for port in ports:
            found.append(socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S))
            if number % 2:
                with suppress(ConnectionError):  # it may be closed for a newer one
                    found[-1].send(b"\x00")
    return found


def is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().read() == b"serving\n"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def fills_every_port(root: Path, limit: int) -> None:
    with cluster(root, limit) as (process, nameserver), Producer(nameserver, group="before") as producer:
        producer.send("T0", b"first")
        ports = ports_of(process)
        metrics = [port for port in ports if is_healthy(port)]
        assert len(metrics) == 4, "of nameserver, rebalancer, broker and gateway"
        assert len(ports) == 9, "their own ports, and the HA port"
        for number, filled in enumerate([*([port] for port in ports), ports]):
            idle = fill(filled, limit // len(filled) + 100)
            for count in range(4):  # new topics, queues, and two files of the log
                producer.send(f"T{number}-{count}", HALF_A_FILE)
            assert all(map(is_healthy, metrics)), filled
            with Producer(nameserver, group=f"new-{number}") as another:
                another.send(f"T{number}-0", b"new client")
            assert process.num_fds() <= limit
            for each in idle:
                each.close()


def test_good_sends_while_any_port_is_full_of_idle_connections(tmp_path: Path) -> None:
    fills_every_port(tmp_path, 512)


@pytest.mark.extended
@pytest.mark.parametrize("limit", [1_024, 4_096])
def test_good_sends_while_any_port_of_a_larger_process_is_full(tmp_path: Path, limit: int) -> None:
    fills_every_port(tmp_path, limit)
