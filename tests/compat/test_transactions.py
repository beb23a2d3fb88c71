"""Transactions of RocketMQ's Java producers, and open transactions in a store that changes its broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.agent import Agent, Facts
from tests.compat.build import CLIENT, JavaKit
from tests.compat.conftest import Names
from tests.compat.peers import Peer
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ
from tests.eventually import eventually

pytestmark = pytest.mark.java

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
TOPIC, GROUP = "Transactions", "G_transactions"
SETTINGS = {
    "autoCreateTopicEnable": "false",
    "mappedFileSizeCommitLog": str(16 << 20),
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "3000",
    "transactionCheckMax": "1000",
}


def send(client: Agent, name: str, topic: str, body: str, state: str) -> None:
    result: Facts = client.call("transaction_send", name=name, topic=topic, body=body, state=state)
    assert result["status"] == "SEND_OK"


def visible(client: Agent, topic: str) -> list[str]:
    """Return the bodies of all messages that consumers can see, sorted."""
    found: list[str] = []
    for queue in client.publish_queues(topic):
        offset = 0
        while (pulled := client.call("pull", group="G_reader", offset=offset, **queue))["status"] == "FOUND":
            found += [message["body"] for message in pulled["messages"]]
            offset += len(pulled["messages"])
    return sorted(found)


def test_java_transactions_are_visible_after_their_commit(
    each_client: Agent, topic: str, names: Names, peer: Peer
) -> None:
    each_client.call("transaction_start", name=topic, group=names.group())
    for number in range(5):
        send(each_client, topic, topic, f"COMMIT {number}", COMMIT)
        send(each_client, topic, topic, f"ROLLBACK {number}", ROLLBACK)
        send(each_client, topic, topic, f"open {number}", UNKNOWN)
    committed = [f"COMMIT {number}" for number in range(5)]
    eventually(lambda: visible(each_client, topic) == committed, "the commits, which are one-way")
    each_client.call("transaction_stop", name=topic)


@pytest.mark.extended
def test_open_transactions_survive_a_change_of_the_broker(kit: JavaKit, tmp_path: Path) -> None:
    """RayMQ, then RocketMQ, then RayMQ: each checks the transaction that the one before it has left open."""
    ours = RayMQ(tmp_path / "ours", SETTINGS)
    # RocketMQ writes op messages up to 3 s later by default. By then it would have checked transactions that
    # have ended, and stored copies of them that are open.
    shared = {
        "transactionOpBatchInterval": "100",
        "storePathRootDir": str(ours.store_root),
        "storePathCommitLog": str(ours.store_root / "commitlog"),
    }
    expected: list[str] = []

    def theirs(step: int) -> RocketMQ:
        return RocketMQ(kit, tmp_path / f"theirs-{step}", {**SETTINGS, **shared}, heap="512m")

    for step in range(3):
        side = theirs(step) if step == 1 else ours
        with side, Agent(kit, CLIENT, side.nameserver_address, tmp_path / f"client-{step}") as client:
            if step == 0:
                client.create_topic(side.broker_address, TOPIC, queues=2)
            # A started RocketMQ broker registers its topics a little later; a send before that has no route.
            client.publish_queues(TOPIC)
            client.call("transaction_start", name="producer", group=GROUP)
            send(client, "producer", TOPIC, f"now {step}", COMMIT)
            send(client, "producer", TOPIC, f"never {step}", ROLLBACK)
            expected.append(f"now {step}")
            if step:
                expected.append(f"COMMIT after {step - 1}")
            eventually(lambda client=client: visible(client, TOPIC) == sorted(expected), "the checks")
            client.call("transaction_stop", name="producer")
            # The producer leaves before the transaction is old enough for a check.
            client.call("transaction_start", name="leaves", group=GROUP)
            send(client, "leaves", TOPIC, f"COMMIT after {step}", UNKNOWN)
            client.call("transaction_stop", name="leaves")
            client.close()
            side.stop_cleanly()
