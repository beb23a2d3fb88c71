"""Who is connected: heartbeats in, members out; a new connection takes over, a closed or silent one is
forgotten.
"""

from __future__ import annotations

import pytest

from actors.broker.group.clients import Clients, ConsumerHeartbeat, Subscription


def a_heartbeat(**expressions: str) -> ConsumerHeartbeat:
    return ConsumerHeartbeat("G", {topic: Subscription(topic, tags) for topic, tags in expressions.items()})


@pytest.fixture
def clients(clock) -> Clients[str]:
    return Clients(clock, expiry_ms=120_000)


def test_a_change_is_reported_once(clients: Clients[str]) -> None:
    assert clients.register_consumer(a_heartbeat(T="*"), "a", "c1")
    assert not clients.register_consumer(a_heartbeat(T="*"), "a", "c1")
    assert clients.register_consumer(a_heartbeat(T="*"), "b", "c2")
    assert clients.register_consumer(a_heartbeat(T="x || y"), "a", "c1")
    group = clients.group("G")
    assert group is not None
    assert sorted(group.members) == ["a", "b"]
    assert group.subscriptions["T"].expression == "x || y"


def test_a_client_that_reconnected_survives_the_end_of_its_old_connection(clients: Clients[str]) -> None:
    clients.register_consumer(a_heartbeat(T="*"), "a", "old")
    clients.register_consumer(a_heartbeat(T="*"), "a", "new")
    assert clients.connection_closed("old") == []
    assert clients.connection_closed("new") == [("G", "a")]
    assert clients.group("G") is None


def test_silence_for_the_expiry_time_is_the_end(clients: Clients[str], clock) -> None:
    clients.register_consumer(a_heartbeat(T="*"), "a", "c1")
    clients.register_producer("P", "p", "c1")
    clock.advance(119_000)
    clients.register_consumer(a_heartbeat(T="*"), "b", "c2")
    assert clients.expire() == []
    clock.advance(2_000)
    assert clients.expire() == [("G", "a")]
    assert list(clients.producers("P")) == []
    group = clients.group("G")
    assert group is not None
    assert list(group.members) == ["b"]


def test_unregistering_is_known_or_not(clients: Clients[str]) -> None:
    clients.register_consumer(a_heartbeat(T="*"), "a", "c1")
    clients.register_producer("P", "p", "c1")
    assert clients.unregister_consumer("G", "a")
    assert not clients.unregister_consumer("G", "a")
    clients.unregister_producer("P", "p")
    clients.unregister_producer("P", "p")
    assert list(clients.producer_groups()) == []


def test_the_newest_subscription_stays_whoever_is_heard_last(clients: Clients[str]) -> None:
    newer = ConsumerHeartbeat("G", {"T": Subscription("T", "new", version=2), "U": Subscription("U", "*")})
    older = ConsumerHeartbeat("G", {"T": Subscription("T", "old", version=1)})
    clients.register_consumer(newer, "a", "c1")
    clients.register_consumer(older, "b", "c2")
    group = clients.group("G")
    assert group is not None
    assert group.subscriptions == {"T": Subscription("T", "new", version=2)}


class CountingConnection:
    """A connection that counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountingConnection.compared += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)


def test_a_connection_that_closes_is_looked_for_among_its_own_only(clock) -> None:
    """Thousands may close at once."""
    clients: Clients[CountingConnection] = Clients(clock, expiry_ms=120_000)
    connections = [CountingConnection() for _ in range(300)]
    for number, connection in enumerate(connections):
        clients.register_producer("P", f"p{number}", connection)
        clients.register_consumer(a_heartbeat(T="*"), f"c{number}", connection)
    CountingConnection.compared = 0
    for number, connection in enumerate(connections):
        assert clients.connection_closed(connection) == [("G", f"c{number}")]
    assert CountingConnection.compared < 10 * len(connections)
    assert (clients.group("G"), list(clients.producers("P"))) == (None, [])


def test_a_client_that_unregisters_or_moves_is_not_gone_with_its_old_connection(
    clients: Clients[str],
) -> None:
    clients.register_producer("P", "p", "c1")
    clients.register_consumer(a_heartbeat(T="*"), "a", "c1")
    clients.register_producer("P", "p", "c2")
    clients.unregister_consumer("G", "a")
    assert clients.connection_closed("c1") == []
    assert [member.client_id for member in clients.producers("P")] == ["p"]
    assert clients.connection_closed("c2") == []
    assert list(clients.producers("P")) == []
