"""Consumers of a killed master with `replication: sync` get nothing twice, and skip nothing.

The master restarts without its slave, so it does not know for a while what it has confirmed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.remoting.codes import RayMQRequestCode
from actors.remoting.remoting_errors import RemotingError
from cluster.client import ClientError, Message, MessageExt, Producer, PushConfig, PushConsumer
from tests.compat.agent import Agent
from tests.compat.build import CLIENT, JavaKit
from tests.compat.raymq import RayMQ
from tests.compat.replication.slave import Slave, ask
from tests.eventually import eventually

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.extended]

COUNT = 40
STORE = {"checkpoint_interval_ms": "86400000"}  # nothing is known to be confirmed


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
                eventually(lambda text=body: is_sent(text), "an acknowledgement")  # type: ignore[misc]
            return bodies

        def is_sent(body: str) -> bool:
            try:
                producer.send(Message("T", body.encode()))
            except ClientError:
                return False
            return True

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
