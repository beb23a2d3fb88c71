"""Preflight checks report ports and stores that are in use."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.control.preflight import PortAndStore, check_all, check_port, check_store, free_ports, lock_owner
from store.ownership.identity import StoreIdentity, StoreName, write_name

HOLDS_A_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""
OURS = StoreIdentity("C", "broker-a")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_port_in_use_error_names_the_process(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    reason = check_port("127.0.0.1", port)
    assert f"cannot listen on 127.0.0.1:{port} (Address already in use)" in reason
    assert f"process {os.getpid()}" in reason


def test_free_ports_are_free_and_different() -> None:
    ports = free_ports(["127.0.0.1"] * 3)
    assert len(set(ports)) == 3
    assert [check_port("127.0.0.1", port) for port in ports] == ["", "", ""]


def test_store_of_another_broker_is_refused(tmp_path: Path) -> None:
    write_name(tmp_path, StoreName(StoreIdentity("C", "broker-b"), "id", 4096, 20, 1, 2))
    assert check_store(str(tmp_path), OURS) == (
        f"{tmp_path} is the store of broker broker-b (replica 0) of cluster C, not of broker broker-a "
        "(replica 0) of cluster C; correct the store_root or the broker name"
    )
    assert check_store(str(tmp_path), StoreIdentity("C", "broker-b")) == ""


def test_damaged_store_name_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "raymq.json").write_text("{")
    assert "raymq.json" in check_store(str(tmp_path), OURS)
    assert (tmp_path / "raymq.json").read_text() == "{"


def test_locked_store_error_names_the_process(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS_A_LOCK, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert lock_owner(tmp_path / "lock") == holder.pid
        assert f"in use by process {holder.pid}" in check_store(str(tmp_path), OURS)
        holder.kill()
    assert check_store(str(tmp_path), OURS) == ""


def test_missing_store_is_accepted_if_it_can_be_created(tmp_path: Path) -> None:
    assert check_store(str(tmp_path / "a" / "b"), OURS) == ""
    (tmp_path / "file").write_text("")
    assert "is not a directory" in check_store(str(tmp_path / "file"), OURS)


def test_ha_port_in_use_error_names_the_setting(listener: socket.socket) -> None:
    demand = PortAndStore("t.yaml:3: brokers[0]", "127.0.0.1", 0, ha_port=listener.getsockname()[1])
    (found,) = check_all([demand])
    assert found.startswith("t.yaml:3: brokers[0].settings.ha_listen_port: cannot listen on 127.0.0.1:")
    assert f"in use by process {os.getpid()}" in found
    assert "give it another port" in found
    (found,) = check_all([PortAndStore("t.yaml:3: brokers[0]", "127.0.0.1", 0, ha_port=65536)])
    assert "cannot listen on 127.0.0.1:65536 (" in found


def test_no_free_pair_of_ports_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.control.preflight.PAIR_ATTEMPTS", 0)
    with pytest.raises(
        OSError, match=r"no two free ports in a row on 127.0.0.1 after 0 attempts; set listen"
    ):
        free_ports(["127.0.0.1"])


def test_check_all_reports_every_conflict(listener: socket.socket, tmp_path: Path) -> None:
    port = listener.getsockname()[1]
    (tmp_path / "raymq.json").write_text("{")
    found = check_all([
        PortAndStore("t.yaml:3: brokers[0]", "127.0.0.1", port, str(tmp_path), OURS),
        PortAndStore("t.yaml:5: brokers[1]", "127.0.0.1", 0),
    ])  # fmt: skip
    assert [line.partition(": brokers")[0] for line in found] == ["t.yaml:3", "t.yaml:3"]
    assert "brokers[0].listen_port: " in found[0]
    assert "brokers[0].store: " in found[1]
