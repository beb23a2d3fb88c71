"""Slaves of RocketMQ follow a RayMQ master: both CommitLogs are equal byte for byte."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from actors.transport.clients.blocking import BlockingConnection
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from tests.compat.agent import Agent, Facts
from tests.compat.build import CLIENT, RELEASES, JavaKit
from tests.compat.mqadmin import Mqadmin
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ
from tests.eventually import LIMIT_S, eventually

pytestmark = pytest.mark.java

TOPIC = "Replicated"
FILE_BYTES = 1 << 20
FILES = {"mappedFileSizeCommitLog": str(FILE_BYTES), "maxMessageSize": "65536"}


class Master:
    """A RayMQ master and the Java slave of the test, with the questions that the test asks."""

    def __init__(self, ours: RayMQ, slave: RocketMQ) -> None:
        self.ours = ours
        self.slave = slave

    def ask(self, code: int) -> dict[str, object]:
        with BlockingConnection(self.ours.broker_address, int(LIMIT_S * 1000)) as connection:
            return dict(orjson.loads(connection.exchange(RemotingCommand(code)).body))

    def slave_has_all(self) -> bool:
        status = self.ask(RequestCode.GET_BROKER_HA_STATUS)
        connections = status["haConnectionInfo"]
        assert isinstance(connections, list)
        return [each["diff"] for each in connections] == [0]

    def assert_equal(self) -> int:
        """Wait until the slave has the whole log, compare all files, and return the end of the log."""
        eventually(self.slave_has_all, "the slave has the log")
        written = self.ask(RayMQRequestCode.DESCRIBE_BROKER)["written"]
        assert isinstance(written, int)
        for base in range(0, written, FILE_BYTES):
            name = f"commitlog/{base:020d}"
            count = min(written - base, FILE_BYTES)
            theirs = (self.slave.store_root / name).read_bytes()[:count]
            assert theirs == (self.ours.store_root / name).read_bytes()[:count], name
        return written


def messages(first: int, count: int) -> list[Facts]:
    return [
        {"topic": TOPIC, "body": f"{n} " + "x" * 900, "keys": f"k{n}"} for n in range(first, first + count)
    ]


def slave_of(kit: JavaKit, ours: RayMQ, root: Path, release: str = "5.3.3") -> RocketMQ:
    role = {"brokerId": "1", "brokerRole": "SLAVE", "namesrvAddr": ours.nameserver_address}
    return RocketMQ(kit, root, {**FILES, **role}, heap="512m", profile=RELEASES[release].server)


@pytest.mark.parametrize("release", ["5.3.3", pytest.param("5.5.0", marks=pytest.mark.extended)])
def test_java_slave_copies_the_log_and_confirms_sends(kit: JavaKit, tmp_path: Path, release: str) -> None:
    """Double write: while the slave is away, a Java producer gets an error, and nothing is stored."""
    ours = RayMQ(tmp_path / "ours", FILES, ("--broker", "replication=sync"))
    slave = slave_of(kit, ours, tmp_path / "slave", release)
    try:
        with ours, Agent(kit, CLIENT, ours.nameserver_address, tmp_path / "client") as client:
            master = Master(ours, slave)
            client.create_topic(ours.broker_address, TOPIC, queues=4)
            written = master.ask(RayMQRequestCode.DESCRIBE_BROKER)["written"]
            (refused,) = client.send(messages(0, 1))
            assert refused["code"] == 1, refused  # "in-sync replicas not enough"
            assert master.ask(RayMQRequestCode.DESCRIBE_BROKER)["written"] == written
            slave.start_broker()
            eventually(lambda: client.send(messages(0, 1))[0].get("status") == "SEND_OK", "the slave")
            client.send_dispatched(messages(1, 2500))
            written = master.assert_equal()
            assert written > 2 * FILE_BYTES
            with Mqadmin(kit, ours.nameserver_address, tmp_path / "mqadmin") as mqadmin:
                [printed] = mqadmin.run(f"haStatus -b {ours.broker_address}")
            assert f"#MasterCommitLogMaxOffset {written} #SlaveNum 1" in " ".join(printed.split())
            _, acknowledged, lag, _, status, sent = printed.split()[-6:]
            assert (acknowledged, lag, status, sent) == (str(written), "0", "OK", str(written))
    finally:
        slave.stop()


@pytest.mark.extended
def test_java_slave_copies_the_log_through_kills_of_both_sides(kit: JavaKit, tmp_path: Path) -> None:
    ours = RayMQ(tmp_path / "ours", FILES, ("--broker", "replication=async"))
    slave = slave_of(kit, ours, tmp_path / "slave")
    try:
        with ours, Agent(kit, CLIENT, ours.nameserver_address, tmp_path / "client") as client:
            master = Master(ours, slave)
            client.create_topic(ours.broker_address, TOPIC, queues=4)
            client.send_dispatched(messages(0, 1000))  # before the slave exists: it starts at the oldest file
            slave.start_broker()
            client.send_dispatched(messages(1000, 2500))
            assert master.assert_equal() > 3 * FILE_BYTES
            slave.kill_broker()
            client.send_dispatched(messages(3500, 500))
            slave.start_broker()
            master.assert_equal()
            ours.restart_broker(killed=True)
            eventually(lambda: client.send(messages(4000, 1))[0].get("status") == "SEND_OK", "a connection")
            client.send_dispatched(messages(4001, 500))
            master.assert_equal()
    finally:
        slave.stop()
