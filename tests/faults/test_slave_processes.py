"""A master and its slave in processes of their own: kills of either side, and equal logs afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.client import ClientError, Message, Producer
from store.tools.verify import verify
from tests.compat.replication.slave import Slave, assert_logs_equal
from tests.eventually import eventually
from tests.faults.standalone_process import StandaloneProcess

FILE_BYTES = 1 << 20
STORE = ("--store", f"commit_log_file_bytes={FILE_BYTES}")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[StandaloneProcess]:
    options = (*STORE, "--flush", "async", "--broker", "replication=async")
    process = StandaloneProcess(tmp_path / "m", options)
    yield process
    process.stop()


def send(nameserver: str, count: int) -> None:
    with Producer(nameserver, "PG") as producer:

        def is_sent() -> bool:
            try:
                producer.send(Message("T", bytes(1000)))
            except ClientError:
                return False
            return True

        eventually(is_sent, "a broker")
        for _ in range(count - 1):
            assert is_sent()


def test_slave_has_the_masters_log_after_kills_of_either_side(
    master: StandaloneProcess, tmp_path: Path
) -> None:
    send(master.nameserver, 1500)
    with Slave(tmp_path / "s", master.nameserver, (*STORE, "--flush", "async")) as slave:
        assert slave.follow_up_to(master.broker) > FILE_BYTES
        slave.kill()
        send(master.nameserver, 500)
        slave.start()
        slave.follow_up_to(master.broker)
        master.kill()
        master.start()
        send(master.nameserver, 1500)
        end = slave.follow_up_to(master.broker)
        assert_logs_equal(tmp_path / "m" / "broker-a-0", slave.store_root, end)
    assert verify(slave.store_root).findings == []
