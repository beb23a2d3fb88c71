"""`up` ends the processes that a lost head has left, before it checks ports; nothing else ends them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import launch
from cluster.control.launch_errors import LaunchRefused
from cluster.control.session.ray_head import MARK_ENV, HeadRecord, write_record
from cluster.control.topology.topology_file import TopologyError
from tests.ports import free_port

LISTENER = """
import signal, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
signal.pause()
"""
MARK = "0123456789abcdef"


@pytest.fixture
def port() -> int:
    return free_port(-2)


@pytest.fixture
def left(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that listens on `port`, as a broker of a head whose GCS is lost."""
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    write_record(tmp_path, HeadRecord(MARK, "127.0.0.1:1"))
    command = [sys.executable, "-c", LISTENER, str(port)]
    environment = {**os.environ, MARK_ENV: MARK}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


def overrides(port: int, other: int) -> list[str]:
    brokers = f"[{{name: a, listen_port: {port}}}, {{name: b, listen_port: {other}}}]"
    return ["ray.address=new", "nameservers.0.listen_port=0", f"brokers={brokers}"]


def test_up_ends_what_a_lost_head_has_left(left: subprocess.Popen[bytes], port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        taken = foreign.getsockname()[1]
        with pytest.raises(LaunchRefused, match=rf"cannot listen on 127.0.0.1:{taken}") as caught:
            launch.up(overrides=overrides(port, taken))
    assert f":{port}" not in str(caught.value)
    assert left.poll() is not None


def test_invalid_topology_and_dry_run_end_nothing(left: subprocess.Popen[bytes], port: int) -> None:
    with pytest.raises(TopologyError):
        launch.up(overrides=[*overrides(port, 0), "broker_settings.no_such_key=1"])
    with pytest.raises(LaunchRefused, match=rf"cannot listen on 127.0.0.1:{port}"):
        launch.up(overrides=overrides(port, 0), dry_run=True)
    assert left.poll() is None
