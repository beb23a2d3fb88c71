"""A slave of RayMQ follows a master of RocketMQ, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.wire.codes import RequestCode
from cluster.client import ClientError, ConsumerConfig, Message, Producer, PullConsumer
from store.tools.verify import verify
from tests.compat.agent import Agent
from tests.compat.build import CLIENT, RELEASES, JavaKit
from tests.compat.replication.slave import Slave, ask, assert_logs_equal
from tests.compat.rocketmq import RocketMQ
from tests.eventually import eventually

pytestmark = [pytest.mark.java, pytest.mark.extended]  # five minutes; pairs of our own run by default

FILE_BYTES = 1 << 20
MASTER = {
    "brokerRole": "ASYNC_MASTER",
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "maxMessageSize": "65536",
    "brokerFastFailureEnable": "false",
}
OPTIONS = ("--flush", "async", "--store", f"commit_log_file_bytes={FILE_BYTES}")


def send(nameserver: str, topic: str, count: int, size_bytes: int = 1000) -> None:
    """Send messages; wait for a broker that has just started and is not in the routes yet."""
    with Producer(nameservers=nameserver, group="PG") as producer:

        def is_sent(number: int) -> bool:
            try:
                producer.send(Message(topic, b"%06d" % number + bytes(size_bytes)))
            except ClientError:
                return False
            return True

        eventually(lambda: is_sent(0), "a broker")
        for number in range(1, count):
            assert is_sent(number)


@pytest.mark.parametrize("release", ["5.3.3", "5.5.0"])
def test_slave_copies_the_log_and_the_tables_of_a_rocketmq_master(
    kit: JavaKit, tmp_path: Path, release: str
) -> None:
    profile = RELEASES[release].server
    with RocketMQ(kit, tmp_path / "m", MASTER, heap="512m", profile=profile) as master:
        nameserver, address = master.nameserver_address, master.broker_address
        send(nameserver, "Before", 3000)  # three files
        with Slave(tmp_path / "s", nameserver, OPTIONS) as slave:
            end = slave.follow_up_to(address)
            assert end > 2 * FILE_BYTES
            assert_logs_equal(master.store_root, slave.store_root, end)
            topics = ask(slave.address, RequestCode.GET_ALL_TOPIC_CONFIG)
            assert b'"Before"' in topics
            eventually(lambda: slave.describe()["missing_tables"] == "", "the tables")

            slave.kill()
            send(nameserver, "Meanwhile", 500)
            slave.start()
            slave.follow_up_to(address)
            master.restart_broker(killed=True)
            eventually(lambda: slave.describe()["replication_state"] == "following", "a reconnection")
            send(nameserver, "After", 1500)
            end = slave.follow_up_to(address)
            assert_logs_equal(master.store_root, slave.store_root, end)
            eventually(
                lambda: b'"After"' in ask(slave.address, RequestCode.GET_ALL_TOPIC_CONFIG), "the new topic"
            )
        assert verify(slave.store_root).findings == []


def test_consumers_read_from_the_slave_of_a_killed_master_and_return(kit: JavaKit, tmp_path: Path) -> None:
    may_read = {"slaveReadEnable": "true"}
    with RocketMQ(kit, tmp_path / "m", MASTER | may_read, heap="512m") as master:
        nameserver = master.nameserver_address
        send(nameserver, "T", 50)
        options = (*OPTIONS, "--broker", "slave_read_enable=true")
        with Slave(tmp_path / "s", nameserver, options) as slave:
            slave.follow_up_to(master.broker_address)
            eventually(lambda: b'"T"' in ask(slave.address, RequestCode.GET_ALL_TOPIC_CONFIG), "the topic")
            master.kill_broker()
            with Agent(kit, CLIENT, nameserver, tmp_path / "agent") as java:
                java.call("push_start", name="java", group="java", topic="T")
                config = ConsumerConfig(
                    nameservers=nameserver, group="python", self_assign_after_ms=0, route_refresh_ms=500
                )
                with PullConsumer(config=config) as python:
                    python.subscribe("T")
                    taken: list[bytes] = []

                    def has_taken(count: int) -> bool:
                        taken.extend(bytes(each.body) for each in python.poll(timeout_ms=100))
                        return len(set(taken)) == count

                    eventually(lambda: has_taken(50), "all messages in Python")
                    eventually(lambda: len(bodies(java)) == 50, "all messages in Java")
                    master.start_broker()
                    send(nameserver, "T", 60)  # ten new bodies
                    eventually(lambda: has_taken(60), "the master's messages in Python")
                    eventually(lambda: len(bodies(java)) == 60, "the master's messages in Java")


def bodies(java: Agent) -> set[str]:
    return {message["body"] for message in java.received("java", 0)}
