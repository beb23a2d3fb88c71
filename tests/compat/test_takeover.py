"""RocketMQ's broker takes over a directory of ours: topics, offsets, messages; then ours takes it back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.compat.agent import Agent, Facts
from tests.compat.build import CLIENT, JavaKit
from tests.compat.peers import Peer
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ

pytestmark = pytest.mark.java

TOPIC = "Inherited"
GROUP = "G_inherited"
QUEUES = 3
SETTINGS = {"autoCreateTopicEnable": "false", "mappedFileSizeCommitLog": str(16 << 20)}


def messages(first: int, count: int) -> list[Facts]:
    """Messages of which number n goes into queue n modulo 3."""
    return [
        {
            "topic": TOPIC,
            "broker": "broker-a",
            "queueId": n % QUEUES,
            "body": f"{n}",
            "keys": f"k{n} all{n // 20}",
        }
        for n in range(first, first + count)
    ]


def of_queue(number: int) -> Mapping[str, object]:
    return {"topic": TOPIC, "broker": "broker-a", "queueId": number}


def assert_holds(client: Agent, count: int) -> None:
    """The topic has its queues, and messages 0 to `count` in them, found by offset and by key."""
    assert client.publish_queues(TOPIC) == [of_queue(number) for number in range(QUEUES)]
    for number in range(QUEUES):
        expected = [f"{n}" for n in range(number, count, QUEUES)]
        found: list[str] = []
        while len(found) < len(expected):
            pulled = client.call("pull", group=GROUP, offset=len(found), **of_queue(number))
            assert pulled["status"] == "FOUND", pulled
            found += [message["body"] for message in pulled["messages"]]
        assert found == expected
    for n in (0, count // 2, count - 1):
        assert [message["body"] for message in client.call("query", topic=TOPIC, key=f"k{n}")] == [f"{n}"]
    assert len(client.call("query", topic=TOPIC, key="all1")) == 20


def send_all(client: Agent, first: int, count: int) -> None:
    results = client.send(messages(first, count))
    assert [result.get("status") for result in results] == ["SEND_OK"] * count, results


def test_a_store_goes_to_rocketmqs_broker_and_comes_back(kit: JavaKit, tmp_path: Path) -> None:
    ours = RayMQ(tmp_path / "ours", SETTINGS)
    shared = {
        "storePathRootDir": str(ours.store_root),
        "storePathCommitLog": str(ours.store_root / "commitlog"),
    }
    theirs = RocketMQ(kit, tmp_path / "theirs", {**SETTINGS, **shared}, heap="512m")

    def client_of(peer: Peer, name: str) -> Agent:
        return Agent(kit, CLIENT, peer.nameserver_address, tmp_path / name)

    with ours, client_of(ours, "client-1") as client:
        client.create_topic(ours.broker_address, TOPIC, queues=QUEUES)
        send_all(client, 0, 90)
        assert_holds(client, 90)
        client.call("commit_offset", group=GROUP, offset=17, **of_queue(1))

    with theirs, client_of(theirs, "client-2") as client:
        assert_holds(client, 90)
        assert client.call("consumer_offset", group=GROUP, **of_queue(1)) == 17
        send_all(client, 90, 60)
        client.call("commit_offset", group=GROUP, offset=29, **of_queue(1))
        client.close()
        theirs.stop_in_order()

    with ours, client_of(ours, "client-3") as client:
        assert_holds(client, 150)
        assert client.call("consumer_offset", group=GROUP, **of_queue(1)) == 29
        send_all(client, 150, 30)
        assert_holds(client, 180)
