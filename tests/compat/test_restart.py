"""A restarted broker serves its messages, and RocketMQ's Java clients reconnect automatically."""

from __future__ import annotations

import pytest

from tests.compat.conftest import Agents, Names
from tests.compat.peers import Peer
from tests.eventually import eventually

pytestmark = pytest.mark.java

SEND_OK = "SEND_OK"


@pytest.mark.parametrize(
    "killed", [pytest.param(False, marks=pytest.mark.extended), True], ids=["clean", "killed"]
)
def test_messages_and_clients_survive_a_broker_restart(
    agents: Agents, peer: Peer, topic: str, names: Names, killed: bool
) -> None:
    client = agents.start("5.3.3-json")
    sent = client.send([{"topic": topic, "body": f"{n}", "keys": f"r{n}"} for n in range(200)])
    assert [result["status"] for result in sent] == [SEND_OK] * 200

    peer.restart_broker(killed=killed)
    client.call("push_start", name=topic, group=names.group(), topic=topic)

    def is_served() -> bool:
        [result] = client.send([{"topic": topic, "body": "after"}])
        return result.get("status") == SEND_OK

    eventually(is_served, "an acknowledgement of the restarted broker")
    expected = {*(f"{n}" for n in range(200)), "after"}
    eventually(lambda: {message["body"] for message in client.received(topic, 0)} == expected, "all messages")
    by_key = client.call("query", topic=topic, key="r123")
    assert [message["body"] for message in by_key] == ["123"]
    client.close()
