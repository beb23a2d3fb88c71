"""Connected clients: registration by heartbeats, changed connections, closed connections and expiry."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from actors.broker.core.group import clients as module
from actors.broker.core.group.clients import (
    SUBSCRIPTIONS,
    Clients,
    ConsumerHeartbeat,
    Subscription,
)
from actors.wire.remoting_errors import Refused


def a_heartbeat(**expressions: str) -> ConsumerHeartbeat:
    return ConsumerHeartbeat("G", {topic: Subscription(topic, tags) for topic, tags in expressions.items()})


@pytest.fixture
def clients(clock) -> Clients[str]:
    return Clients(clock, expiry_ms=120_000)


def test_membership_or_subscription_change_is_reported_once(clients: Clients[str]) -> None:
    assert clients.register_consumer(a_heartbeat(T="*"), "a", "c1")
    assert not clients.register_consumer(a_heartbeat(T="*"), "a", "c1")
    assert clients.register_consumer(a_heartbeat(T="*"), "b", "c2")
    assert clients.register_consumer(a_heartbeat(T="x || y"), "a", "c1")
    group = clients.group("G")
    assert group is not None
    assert sorted(group.members) == ["a", "b"]
    assert group.subscriptions["T"].expression == "x || y"


def test_reconnected_client_stays_when_its_old_connection_closes(clients: Clients[str]) -> None:
    clients.register_consumer(a_heartbeat(T="*"), "a", "old")
    clients.register_consumer(a_heartbeat(T="*"), "a", "new")
    assert clients.connection_closed("old") == []
    assert clients.connection_closed("new") == [("G", "a")]
    assert clients.group("G") is None


def test_clients_without_heartbeats_expire(clients: Clients[str], clock) -> None:
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


def test_unregister_consumer_returns_whether_it_was_registered(clients: Clients[str]) -> None:
    clients.register_consumer(a_heartbeat(T="*"), "a", "c1")
    clients.register_producer("P", "p", "c1")
    assert clients.unregister_consumer("G", "a")
    assert not clients.unregister_consumer("G", "a")
    clients.unregister_producer("P", "p")
    clients.unregister_producer("P", "p")
    assert list(clients.producer_groups()) == []


def test_newest_subscription_version_is_kept(clients: Clients[str]) -> None:
    newer = ConsumerHeartbeat("G", {"T": Subscription("T", "new", version=2), "U": Subscription("U", "*")})
    older = ConsumerHeartbeat("G", {"T": Subscription("T", "old", version=1)})
    clients.register_consumer(newer, "a", "c1")
    clients.register_consumer(older, "b", "c2")
    group = clients.group("G")
    assert group is not None
    assert group.subscriptions == {"T": Subscription("T", "new", version=2)}


class CountingConnection:
    """A connection that counts comparisons with other connections."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountingConnection.compared += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)


def test_closing_a_connection_does_not_scan_all_clients(clock) -> None:
    """Thousands of connections may close at the same time."""
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


def test_closing_an_old_connection_keeps_moved_clients(
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


def test_client_id_of_two_connections_is_one_member_until_the_last_is_gone(clients: Clients[str]) -> None:
    assert clients.register_consumer(a_heartbeat(T="*"), "a", "c1")
    assert not clients.register_consumer(a_heartbeat(T="*"), "a", "c2")
    for connection in ("c1", "c2"):
        clients.register_producer("P", "p", connection)
    group = clients.group("G")
    assert group is not None
    assert (list(group.members), group.connections()) == (["a"], ["c1", "c2"])
    assert not clients.unregister_consumer("G", "a", "c2")
    clients.unregister_producer("P", "p", "c2")
    assert (group.connections(), clients.producer_connections("P")) == (["c1"], ["c1"])
    assert not clients.unregister_consumer("G", "a", "a foreign connection")
    assert clients.connection_closed("c2") == []
    assert clients.unregister_consumer("G", "a", "c1")
    assert clients.connection_closed("c1") == []
    assert list(clients.producer_groups()) == []


def test_registrations_of_one_client_id_expire_one_by_one(clients: Clients[str], clock) -> None:
    clients.register_consumer(a_heartbeat(T="*"), "a", "c1")
    clock.advance(100_000)
    clients.register_consumer(a_heartbeat(T="*"), "a", "c2")
    clock.advance(100_000)
    assert clients.expire() == []
    group = clients.group("G")
    assert group is not None
    assert group.connections() == ["c2"]
    clock.advance(100_000)
    assert clients.expire() == [("G", "a")]


def test_shared_client_id_is_logged_once_and_a_reconnect_is_not(clients: Clients[str]) -> None:
    with capture_logs() as logs:
        for connection in ("old", "new", "new"):
            clients.register_consumer(a_heartbeat(T="*"), "a", connection)
        assert logs == []
        for connection in ("old", "new", "old"):
            clients.register_consumer(a_heartbeat(T="*"), "a", connection)
    [line] = logs
    assert (line["event"], line["peers"]) == ("client_id_shared", ["old", "new"])


def test_client_id_belongs_to_the_user_of_its_first_registration(clients: Clients[str]) -> None:
    clients.register_consumer(a_heartbeat(T="*"), "a", "c1", "alice")
    clients.register_producer("P", "a", "c1", "alice")
    with pytest.raises(Refused, match="belongs to another user"):
        clients.register_consumer(a_heartbeat(T="*"), "a", "c2", "mallory")
    with pytest.raises(Refused, match="belongs to another user"):
        clients.register_producer("P", "a", "c2", "mallory")
    with pytest.raises(Refused, match="belongs to another user"):
        clients.check_user("G", "a", "mallory")
    clients.check_user("G", "a", None)  # a super user
    clients.connection_closed("c1")
    assert clients.register_consumer(a_heartbeat(T="*"), "a", "c2", "mallory")


def test_oldest_logged_difference_is_forgotten_over_the_limit(
    clients: Clients[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DIFFERENCES", replace(module.DIFFERENCES, limit=2))
    clients.register_consumer(a_heartbeat(T="*"), "a", "c1")
    group = clients.group("G")
    assert group is not None
    assert [group.is_new_difference({"T": tags}) for tags in "abac"] == [True, True, False, True]
    assert {each.bound.name: each.read() for each in clients.bounds()}["subscription_differences"] == 2
    assert [group.is_new_difference({"T": tags}) for tags in "cab"] == [False, False, True]


def test_subscriptions_of_all_groups_are_bounded(clients: Clients[str]) -> None:
    def heartbeat(group: str, characters: int) -> ConsumerHeartbeat:
        return ConsumerHeartbeat(group, {"T": Subscription("T", "x" * characters)})

    half = SUBSCRIPTIONS.limit // 2
    clients.register_consumer(heartbeat("A", half), "a", "c1")
    with pytest.raises(Refused, match="group 'B' cannot subscribe"):
        clients.register_consumer(heartbeat("B", half), "b", "c2")
    assert clients.group("B") is None
    clients.register_consumer(heartbeat("A", half), "a", "c1")  # a repeated heartbeat counts once
    clients.register_consumer(heartbeat("A", 10), "a", "c1")
    clients.register_consumer(heartbeat("B", half), "b", "c2")
    clients.connection_closed("c2")
    clients.register_consumer(heartbeat("C", half), "c", "c3")
