"""Timer messages and recalls of RocketMQ's Java producers, and timers in a store that changes its broker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.compat.agent import Agent, Facts, OperationFailed
from tests.compat.build import CLIENT, CLIENT_5_5, JavaKit
from tests.compat.peers import Peer
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ
from tests.compat.test_transactions import visible
from tests.eventually import eventually

pytestmark = pytest.mark.java

TOPIC = "Timers"
SOON_MS, LATER_MS = 2_000, 3_600_000
SETTINGS = {
    "autoCreateTopicEnable": "false",
    "mappedFileSizeCommitLog": str(16 << 20),
}


def send(client: Agent, topic: str, body: str, name: str, number: int) -> Facts:
    [result] = client.send([{"topic": topic, "body": body, name: str(number)}])
    assert result.get("status") == "SEND_OK", result
    return result


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_java_timer_messages_are_delivered_after_their_time(
    each_client: Agent, topic: str, peer: Peer
) -> None:
    send(each_client, topic, "delay", "TIMER_DELAY_MS", SOON_MS)
    send(each_client, topic, "time", "TIMER_DELIVER_MS", now_ms() + SOON_MS)
    send(each_client, topic, "past", "TIMER_DELIVER_MS", 1)
    send(each_client, topic, "later", "TIMER_DELAY_MS", LATER_MS)
    expected = ["delay", "past", "time"]
    eventually(lambda: visible(each_client, topic) == expected, "the delivery")
    [refused] = each_client.send([{"topic": topic, "body": "x", "TIMER_DELAY_MS": "259300000"}])
    assert "MESSAGE_ILLEGAL" in str(refused) or "CODE: 13" in str(refused), refused


@pytest.mark.parametrize("client_version", [CLIENT, pytest.param(CLIENT_5_5, marks=pytest.mark.extended)])
def test_java_producer_recalls_a_timer_message(
    kit: JavaKit, tmp_path: Path, topic: str, peer: Peer, client_version: str
) -> None:
    with Agent(kit, client_version, peer.nameserver_address, tmp_path) as client:
        recalled = send(client, topic, "recalled", "TIMER_DELAY_MS", 2 * SOON_MS)
        send(client, topic, "kept", "TIMER_DELAY_MS", 2 * SOON_MS)
        assert client.call("recall", topic=topic, handle=recalled["recallHandle"]) == recalled["msgId"]
        eventually(lambda: visible(client, topic) == ["kept"], "the delivery of the other message")
        with pytest.raises(OperationFailed, match="timestamp invalid"):
            client.call("recall", topic=topic, handle=recalled["recallHandle"])
        assert visible(client, topic) == ["kept"]


@pytest.mark.extended
@pytest.mark.parametrize("killed", [False, True], ids=["clean", "killed"])
def test_pending_timers_survive_a_change_of_the_broker(kit: JavaKit, tmp_path: Path, killed: bool) -> None:
    """RayMQ, then RocketMQ, then RayMQ: each delivers what the one before it has accepted."""
    ours = RayMQ(tmp_path / "ours", SETTINGS)
    shared = {
        "storePathRootDir": str(ours.store_root),
        "storePathCommitLog": str(ours.store_root / "commitlog"),
        "recallMessageEnable": "true",
    }
    expected: list[str] = []

    def theirs(step: int) -> RocketMQ:
        return RocketMQ(kit, tmp_path / f"theirs-{step}", {**SETTINGS, **shared}, heap="512m")

    for step in range(3):
        side = theirs(step) if step == 1 else ours
        with side, Agent(kit, CLIENT, side.nameserver_address, tmp_path / f"client-{step}") as client:
            if step == 0:
                client.create_topic(side.broker_address, TOPIC, queues=2)
            client.publish_queues(TOPIC)
            send(client, TOPIC, f"soon {step}", "TIMER_DELAY_MS", SOON_MS)
            expected.append(f"soon {step}")
            eventually(
                lambda client=client: sorted(set(visible(client, TOPIC))) == sorted(expected), "the delivery"
            )
            if not killed:
                assert len(visible(client, TOPIC)) == len(expected)
            due_ms = now_ms() + 30_000
            recalled = send(client, TOPIC, f"recalled {step}", "TIMER_DELIVER_MS", due_ms)
            send(client, TOPIC, f"after {step}", "TIMER_DELIVER_MS", due_ms)
            send(client, TOPIC, f"never {step}", "TIMER_DELAY_MS", LATER_MS)
            client.call("recall", topic=TOPIC, handle=recalled["recallHandle"])
            expected.append(f"after {step}")
            client.close()
            if killed:
                side.kill_broker()
            else:
                side.stop_cleanly()
