"""A master and its slave in processes of their own: kills and pauses of either side, then equal logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.client import ClientError, Message, Producer, ProducerConfig, SendStatus
from store.tools.verify import verify
from tests.compat.replication.slave import Slave, assert_logs_equal, log_files
from tests.eventually import eventually
from tests.faults.standalone_process import StandaloneProcess, paused

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


@pytest.mark.extended  # the master disconnects a silent slave after 20 s
def test_pauses_of_either_side_lose_no_acknowledged_message(tmp_path: Path) -> None:
    """A paused slave delays sends until it is disconnected; then they are refused."""
    options = (*STORE, "--broker", "replication=sync", "--broker", "slave_timeout_ms=1000")
    master = StandaloneProcess(tmp_path / "m", options)
    config = ProducerConfig(
        nameservers=master.nameserver, group="PG", request_timeout_ms=2_000, delivery_timeout_ms=4_000
    )
    acknowledged: list[bytes] = []

    def send(producer: Producer) -> str:
        body = b"message %06d " % len(acknowledged) + bytes(1000)
        try:
            status = producer.send(Message("T", body)).status
        except ClientError as error:
            return str(error)
        if status is SendStatus.SEND_OK:
            acknowledged.append(body)
        return status.name

    def send_until(producer: Producer, outcome: str) -> None:
        eventually(lambda: outcome in send(producer), outcome)

    try:
        with Producer(config=config) as producer, Slave(tmp_path / "s", master.nameserver, STORE) as slave:
            for _ in range(2):
                send_until(producer, "SEND_OK")
                with paused(slave.pid):
                    send_until(producer, "FLUSH_SLAVE_TIMEOUT")
                    send_until(producer, "in-sync replicas not enough")
                send_until(producer, "SEND_OK")
                with paused(master.process.pid):
                    assert send(producer) not in SendStatus.__members__
            send_until(producer, "SEND_OK")
            end = slave.follow_up_to(master.broker)
            assert_logs_equal(tmp_path / "m" / "broker-a-0", slave.store_root, end)
            log = b"".join(path.read_bytes() for path in log_files(slave.store_root).values())
            assert all(body in log for body in acknowledged)
    finally:
        master.stop()
    assert verify(slave.store_root).findings == []
