"""RocketMQ's Java push consumers without client rebalance, in POP mode (mqadmin setConsumeMode)."""

from __future__ import annotations

import pytest

from actors.wire.bodies.pops import PollingInfoHeader
from actors.wire.codes import RequestCode
from tests.compat.agent import Agent
from tests.compat.conftest import DEFAULT_CLIENT, Agents, Names
from tests.compat.mqadmin import Mqadmin
from tests.compat.peers import Peer
from tests.compat.pop.pop_requests import request
from tests.compat.test_consumers import bodies, committed_at_broker, numbered, texts
from tests.eventually import eventually

pytestmark = pytest.mark.java


def waiting_pops(peer: Peer, topic: str, group: str) -> int:
    """Return the number of pops that wait on all queues of a topic: 0 for consumers that pull."""
    header = PollingInfoHeader(group, topic, -1)
    return int(request(peer.broker_address, RequestCode.POLLING_INFO, header).ext.get("pollingNum", 0))


@pytest.fixture(params=[DEFAULT_CLIENT, pytest.param("5.5.0-json", marks=pytest.mark.extended)])
def client(request: pytest.FixtureRequest, agents: Agents) -> Agent:
    """Return the Java client of a release."""
    return agents.get(request.param)


@pytest.fixture
def pops(mqadmin: Mqadmin, peer: Peer, topic: str, names: Names) -> str:
    """Set POP mode for the group of the test and its topic; return the topic."""
    command = f"setConsumeMode -b {peer.broker_address} -t {topic} -g {names.group()} -m POP -q 0"
    (printed,) = mqadmin.run(command)
    assert "success" in printed, printed
    return topic


def start(client: Agent, name: str, topic: str, names: Names, **more: object) -> None:
    client.call("push_start", name=name, group=names.group(), topic=topic, brokerBalances=True, **more)


def test_popping_consumers_share_a_topic(client: Agent, peer: Peer, pops: str, names: Names) -> None:
    for name in ("one", "two"):
        start(client, pops + name, pops, names)
    eventually(lambda: waiting_pops(peer, pops, names.group()) >= 2, "two consumers that pop")

    client.send(numbered(pops, 200))

    def all_received() -> bool:
        found = [client.call("push_received", name=pops + n, count=0, timeoutMs=1) for n in ("one", "two")]
        return all(found) and bodies(found[0] + found[1]) == texts(200)

    eventually(all_received, "each message once, some at each consumer")
    eventually(lambda: committed_at_broker(peer, names.group(), pops) == 200, "all acked")
    for name in ("one", "two"):
        client.call("push_stop", name=pops + name)


def test_failed_message_is_delivered_again(client: Agent, pops: str, names: Names) -> None:
    start(client, pops, pops, names, failures=1)
    client.send(numbered(pops, 3))
    received = client.received(pops, 6)
    client.call("push_stop", name=pops)
    assert bodies(received) == sorted(texts(3) * 2)
    assert {message["reconsumeTimes"] for message in received[3:]} == {1}
    assert {message["topic"] for message in received} == {pops}


@pytest.mark.extended
def test_restarts_lose_no_popped_message(agents: Agents, peer: Peer, pops: str, names: Names) -> None:
    """The broker is killed while messages are claimed, then the consumer ends and another one starts."""
    with agents.start("5.3.3-json") as first:
        start(first, pops, pops, names)
        first.send(numbered(pops, 50))
        first.received(pops, 50)
        first.call("push_freeze", name=pops)
        first.send(numbered(pops, 20, first=50))
        peer.restart_broker(killed=True)
        first.kill()
    with agents.start("5.3.3-json") as second:
        start(second, pops, pops, names)
        second.send(numbered(pops, 10, first=70))

        def all_received() -> bool:
            found = second.call("push_received", name=pops, count=0, timeoutMs=1)
            return set(bodies(found)) >= set(texts(30, first=50))

        # Messages that the first consumer had claimed are visible again after their 60 s at the latest.
        eventually(all_received, "all messages that no consumer has acked", within_s=120)
        second.call("push_stop", name=pops)
