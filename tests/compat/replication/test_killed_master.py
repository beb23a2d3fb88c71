"""Consumers of a killed master with `replication: sync` get nothing twice, and skip nothing.

The master restarts without its slave, so it does not know for a while what it has confirmed; or the slave is
promoted, which has copied no offset since the commits.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.broker.replication.progress_log import MARK_GROUP
from actors.wire.codes import RayMQRequestCode
from actors.wire.remoting_errors import RemotingError
from cluster.client import ClientError, Message, MessageExt, Producer, PushConfig, PushConsumer
from tests.compat.agent import Agent
from tests.compat.build import CLIENT, JavaKit
from tests.compat.raymq import RayMQ
from tests.compat.replication.slave import Slave, ask
from tests.eventually import eventually

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.extended]

COUNT = 40
STORE = {"checkpoint_interval_ms": "86400000"}  # nothing is known to be confirmed


def is_sent(producer: Producer, body: str) -> bool:
    try:
        producer.send(Message("T", body.encode()))
    except ClientError:
        return False
    return True


def test_consumers_of_a_killed_sync_master_go_on_where_they_were(kit: JavaKit, tmp_path: Path) -> None:
    ours = RayMQ(tmp_path / "master", STORE, ("--broker", "replication=sync"))
    received: list[str] = []

    def described(name: str) -> object:
        try:
            return json.loads(ask(ours.broker_address, RayMQRequestCode.DESCRIBE_BROKER))[name]
        except RemotingError:
            return None

    def listen(messages: list[MessageExt]) -> None:
        received.extend(message.body.decode() for message in messages)

    config = PushConfig(nameservers=ours.nameserver_address, group="ours", consume_from="earliest")
    with (
        ours,
        Slave(tmp_path / "slave", ours.nameserver_address) as slave,
        Producer(ours.nameserver_address, "PG") as producer,
        Agent(kit, CLIENT, ours.nameserver_address, tmp_path / "java") as java,
        PushConsumer(listener=listen, config=config) as consumer,
    ):
        consumer.subscribe("T")

        def send(numbers: range) -> list[str]:
            bodies = [f"{number}" for number in numbers]
            for body in bodies:
                eventually(lambda text=body: is_sent(producer, text), "an acknowledgement")  # type: ignore[misc]
            return bodies

        eventually(lambda: described("in_sync_replicas") == 2, "the slave")
        java.create_topic(ours.broker_address, "T", queues=4)
        sent = send(range(COUNT))
        java.call("push_start", name="java", group="java", topic="T")
        java.received("java", COUNT)
        eventually(lambda: len(received) >= COUNT, "our consumer")
        slave.kill()
        ours.restart_broker(killed=True)
        eventually(lambda: described("hidden_bytes"), "the end of the log is not known")
        # Both consumers pull their four queues, and perhaps their retry topics.
        eventually(lambda: (described("held_pulls") or 0) >= 8, "both consumers pull")
        slave.start()
        eventually(lambda: described("hidden_bytes") == 0, "the end of the log is known")
        sent += send(range(COUNT, 2 * COUNT))
        theirs = [message["body"] for message in java.received("java", 2 * COUNT)]
        eventually(lambda: len(received) >= 2 * COUNT, "our consumer")
        assert sorted(theirs) == sorted(received) == sorted(sent)


def test_consumers_continue_at_a_promoted_slave_where_they_have_committed(
    kit: JavaKit, tmp_path: Path
) -> None:
    """They commit as they stop; the slave, which is killed too, copies the offsets only every 10 s."""
    ours = RayMQ(tmp_path / "master", STORE, ("--broker", "replication=sync"))
    slave = Slave(tmp_path / "promoted" / "store", ours.nameserver_address)
    received: list[str] = []

    def listen(messages: list[MessageExt]) -> None:
        received.extend(message.body.decode() for message in messages)

    def consumers(java: Agent, name: str, count: int, *, sent: range) -> None:
        """Receive messages with both consumers, and stop them."""
        config = PushConfig(nameservers=ours.nameserver_address, group="ours", consume_from="earliest")
        with PushConsumer(listener=listen, config=config) as consumer:
            consumer.subscribe("T")
            java.call("push_start", name=name, group="java", topic="T")
            with Producer(ours.nameserver_address, "PG") as producer:
                eventually(lambda: is_sent(producer, f"{sent[0]}"), "an acknowledgement")
                for number in sent[1:]:
                    producer.send(Message("T", f"{number}".encode()))
            theirs = [message["body"] for message in java.received(name, len(sent))]
            eventually(lambda: len(received) >= count, "our consumer")
            java.call("push_stop", name=name)
        assert sorted(theirs) == sorted(f"{number}" for number in sent)

    with Agent(kit, CLIENT, ours.nameserver_address, tmp_path / "java") as java:
        with ours, slave:
            eventually(lambda: not slave.describe()["missing_tables"], "the tables")
            java.create_topic(ours.broker_address, "T", queues=4)
            consumers(java, "first", COUNT, sent=range(COUNT))
            path = slave.store_root / "config" / "consumerOffset.json"
            eventually(lambda: path.exists() and MARK_GROUP in path.read_text(), "the offsets of the slave")
            slave.follow_up_to(ours.broker_address)
            ours.kill_broker()
            slave.kill()
        root = slave.store_root.rename(slave.store_root.with_name("broker-a-0"))
        identity = root / "raymq.json"
        identity.write_text(identity.read_text().replace('"replica": 1', '"replica": 0'))
        with ours.successor(tmp_path / "promoted", ()):
            consumers(java, "second", 2 * COUNT, sent=range(COUNT, 2 * COUNT))
    assert sorted(received) == sorted(f"{number}" for number in range(2 * COUNT))
