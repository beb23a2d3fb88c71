"""A store with claimed messages moves from RocketMQ's broker to RayMQ's and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.actors.broker.features.pop.pops import Popped
from tests.compat.agent import Agent
from tests.compat.build import CLIENT, JavaKit
from tests.compat.peers import Peer
from tests.compat.pop.pop_requests import ack, pop
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ
from tests.eventually import eventually

pytestmark = [pytest.mark.java, pytest.mark.extended]

TOPIC = "PopTakeover"
INVISIBLE_MS = 25_000
"""Longer than the start of a broker."""
SETTINGS = {"autoCreateTopicEnable": "false", "mappedFileSizeCommitLog": str(16 << 20)}


def received(peer: Peer, expected: set[str], *, killed: bool) -> list[Popped]:
    """Pop until all expected messages were received, and ack them; assert that no other one comes.

    After a kill others may come too: the commit offset is the last saved one.
    """
    found: dict[str, Popped] = {}

    def all_received() -> bool:
        for each in pop(peer.broker_address, TOPIC, 32, 600_000):
            found[each.body.decode()] = each
            ack(peer.broker_address, each)
        return found.keys() >= expected

    eventually(all_received, f"messages {expected}, got {sorted(found)}", within_s=120)
    assert killed or found.keys() == expected
    return list(found.values())


def send(kit: JavaKit, peer: Peer, home: Path, texts: str, *, create: bool = False) -> None:
    with Agent(kit, CLIENT, peer.nameserver_address, home) as client:
        if create:
            client.create_topic(peer.broker_address, TOPIC, queues=1)
        client.send_dispatched(
            [{"topic": TOPIC, "broker": "broker-a", "queueId": 0, "body": text} for text in texts]
        )


def claim(peer: Peer, count: int) -> dict[str, Popped]:
    found: dict[str, Popped] = {}

    def has_all() -> bool:
        for each in pop(peer.broker_address, TOPIC, count - len(found), INVISIBLE_MS):
            found[each.body.decode()] = each
        return len(found) == count

    eventually(has_all, f"{count} messages")
    return found


@pytest.mark.parametrize("killed", [False, True], ids=["clean", "killed"])
def test_store_with_claims_moves_between_brokers(kit: JavaKit, tmp_path: Path, killed: bool) -> None:
    ours = RayMQ(tmp_path / "ours", SETTINGS, ["--adopt-store"])
    shared = {
        "storePathRootDir": str(ours.store_root),
        "storePathCommitLog": str(ours.store_root / "commitlog"),
    }
    theirs = RocketMQ(kit, tmp_path / "theirs", {**SETTINGS, **shared}, heap="512m")
    with theirs:
        send(kit, theirs, tmp_path / "client-1", "0123", create=True)
        claimed = claim(theirs, 4)
        ack(theirs.broker_address, claimed["0"])
        theirs.kill_broker() if killed else theirs.stop_cleanly()
    with ours:
        ack(ours.broker_address, claimed["1"])
        again = received(ours, {"2", "3"}, killed=killed)
        assert killed or {each.message.reconsume_times for each in again} == {1}
        send(kit, ours, tmp_path / "client-2", "4567")
        claimed = claim(ours, 4)
        ack(ours.broker_address, claimed["4"])
        ours.kill_broker() if killed else ours.stop_cleanly()
    theirs = RocketMQ(kit, tmp_path / "theirs", {**SETTINGS, **shared}, heap="512m")
    with theirs:
        if not killed:
            ack(theirs.broker_address, claimed["5"])
        received(theirs, {"6", "7"}, killed=killed)
