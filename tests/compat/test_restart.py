"""A broker that went away comes back with its messages, and RocketMQ's Java clients go on by themselves."""

from __future__ import annotations

import pytest

from tests.compat.agent import Agent
from tests.compat.conftest import Agents, Names
from tests.compat.peers import Peer

pytestmark = pytest.mark.java

SEND_OK = "SEND_OK"


def send_until_served(client: Agent, topic: str, body: str, tries: int = 60) -> None:
    """Send until one is acknowledged; between tries the client's own clock passes half a second."""
    for _ in range(tries):
        [result] = client.send([{"topic": topic, "body": body}])
        if result.get("status") == SEND_OK:
            return
        client.call("lite_poll", name="pace", count=1, timeoutMs=500)
    raise AssertionError(f"no send was acknowledged after the broker came back: {result}")


@pytest.mark.parametrize("killed", [False, True], ids=["in order", "killed"])
def test_messages_and_clients_survive_the_broker(
    agents: Agents, peer: Peer, topic: str, names: Names, killed: bool
) -> None:
    client = agents.start("5.3.3-json")
    client.call("lite_start", name="pace", group=names.group("pace"), topic=topic, assign=True)
    sent = client.send([{"topic": topic, "body": f"{n}", "keys": f"r{n}"} for n in range(200)])
    assert [result["status"] for result in sent] == [SEND_OK] * 200

    peer.restart_broker(killed=killed)
    client.call("push_start", name=topic, group=names.group(), topic=topic)
    send_until_served(client, topic, "after")

    received = client.received(topic, 201, timeout_s=40)
    assert sorted({message["body"] for message in received}) == sorted(
        [*(f"{n}" for n in range(200)), "after"]
    )
    by_key = client.call("query", topic=topic, key="r123")
    assert [message["body"] for message in by_key] == ["123"]
    client.close()
