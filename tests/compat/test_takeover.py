"""RocketMQ's broker takes over topics, offsets and messages of a RayMQ store; then RayMQ takes it back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.compat.agent import Agent, Facts, OperationFailed
from tests.compat.build import CLIENT, JavaKit
from tests.compat.peers import Peer
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ
from tests.eventually import eventually

pytestmark = pytest.mark.java

TOPIC = "Takeover"
GROUP = "G_takeover"
QUEUES = 3
SETTINGS = {"autoCreateTopicEnable": "false", "mappedFileSizeCommitLog": str(16 << 20)}


def messages(first: int, count: int) -> list[Facts]:
    """Return messages; message n is for queue n modulo 3."""
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


def assert_is_complete(client: Agent, count: int, *, killed: bool = False) -> None:
    """Assert that the topic has its queues and messages 0 to `count`, found by offset and by key.

    After a kill RocketMQ indexes the last message again during recovery, also in its own stores.
    """
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
        bodies = [message["body"] for message in client.call("query", topic=TOPIC, key=f"k{n}")]
        assert (sorted(set(bodies)) if killed else bodies) == [f"{n}"]
    assert len(client.call("query", topic=TOPIC, key="all1")) == 20


def send_all(client: Agent, first: int, count: int) -> None:
    client.send_dispatched(messages(first, count))

    def last_is_indexed() -> bool:
        with suppress(OperationFailed):
            return bool(client.call("query", topic=TOPIC, key=f"k{first + count - 1}"))
        return False

    eventually(last_is_indexed, "the index, which is written after the consume queues")


@pytest.mark.parametrize(
    "killed", [pytest.param(False, marks=pytest.mark.extended), True], ids=["clean", "killed"]
)
def test_rocketmq_broker_takes_over_a_raymq_store_and_returns_it(
    kit: JavaKit, tmp_path: Path, killed: bool
) -> None:
    """Each broker closes the store cleanly, or is killed immediately after its last acknowledgement."""
    ours = RayMQ(tmp_path / "ours", SETTINGS)
    shared = {
        "storePathRootDir": str(ours.store_root),
        "storePathCommitLog": str(ours.store_root / "commitlog"),
    }

    def client_of(peer: Peer, name: str) -> Agent:
        return Agent(kit, CLIENT, peer.nameserver_address, tmp_path / name)

    def leave(side: RayMQ | RocketMQ) -> None:
        side.kill_broker() if killed else side.stop_cleanly()
        assert (ours.store_root / "abort").exists() == killed

    with ours, client_of(ours, "client-1") as client:
        client.create_topic(ours.broker_address, TOPIC, queues=QUEUES)
        send_all(client, 0, 90)
        assert_is_complete(client, 90)
        client.call("commit_offset", group=GROUP, offset=17, **of_queue(1))
        client.close()
        if killed:
            wait_for_offset(ours.store_root, 17)
        leave(ours)

    # Not earlier: another process could take a port that is chosen but not bound.
    theirs = RocketMQ(kit, tmp_path / "theirs", {**SETTINGS, **shared}, heap="512m")
    with theirs, client_of(theirs, "client-2") as client:
        assert_is_complete(client, 90, killed=killed)
        assert client.call("consumer_offset", group=GROUP, **of_queue(1)) == 17
        send_all(client, 90, 60)
        client.call("commit_offset", group=GROUP, offset=29, **of_queue(1))
        client.close()
        leave(theirs)

    with ours, client_of(ours, "client-3") as client:
        assert_is_complete(client, 150, killed=killed)
        # RocketMQ saves offsets every 5 s: a kill loses the commits since then.
        assert client.call("consumer_offset", group=GROUP, **of_queue(1)) in ((17, 29) if killed else (29,))
        send_all(client, 150, 30)
        assert_is_complete(client, 180, killed=killed)


def wait_for_offset(root: Path, offset: int) -> None:
    """Wait until the group's offset is saved, which RayMQ also does every 5 s."""
    saved = root / "config" / "consumerOffset.json"
    eventually(lambda: saved.exists() and f'"1":{offset}' in saved.read_text(), f"offset {offset} in {saved}")
