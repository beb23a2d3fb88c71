"""RouteTable: registration, heartbeats, expiry and removal of brokers and topics."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from actors.nameserver.route_table import Registrant, RouteTable
from actors.wire.bodies.routes import RegisterBrokerBody
from actors.wire.remoting_errors import Refused
from store.message.data_version import DataVersion

EXPIRY_NS = 120_000_000_000


def topics(*names: str, perm: int = 6, queues: int = 4) -> dict[str, dict[str, Any]]:
    return {
        name: {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": perm}
        for name in names
    }


class Brokers:
    """Registers brokers in a table, each over its own connection unless `connection` is given."""

    def __init__(self) -> None:
        self.table = RouteTable()

    def register(
        self,
        name: str,
        *names: str,
        broker_id: int = 0,
        address: str | None = None,
        counter: int = 1,
        now_ns: int = 0,
        connection: object | None = None,
        state_version: int = 0,
        **options: Any,
    ) -> tuple[str, str] | None:
        where = address or f"{name}:{broker_id}"
        return self.table.register(
            Registrant("C", name, broker_id, where, f"ha-{where}"),
            RegisterBrokerBody(DataVersion(counter, 0, state_version), topics(*names, **options)),
            connection or where,
            now_ns,
            EXPIRY_NS,
        )

    def register_configs(self, name: str, configs: dict[str, dict[str, Any]], counter: int = 1) -> None:
        identity = Registrant("C", name, 0, f"{name}:0")
        self.table.register(identity, RegisterBrokerBody(DataVersion(counter), configs), name, 0, EXPIRY_NS)

    def route(self, topic: str) -> dict[str, tuple[int, int]] | None:
        route = self.table.route(topic)
        if route is None:
            return None
        return {data.broker_name: (data.read_queue_nums, data.perm) for data in route.queue_datas}


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def test_route_has_the_brokers_that_registered_the_topic(brokers: Brokers) -> None:
    brokers.register("a", "T", "U")
    brokers.register("b", "T", queues=8)
    assert brokers.route("T") == {"a": (4, 6), "b": (8, 6)}
    assert brokers.route("U") == {"a": (4, 6)}
    assert brokers.route("V") is None
    assert brokers.table.topics() == ["T", "U"]
    assert brokers.table.topics("C") == ["T", "U"]
    assert brokers.table.topics("other") == []
    assert brokers.table.system_topics() == ["C", "a", "b"]
    assert brokers.table.cluster_info().clusters == {"C": ["a", "b"]}


def test_registration_with_a_new_version_updates_topics(brokers: Brokers) -> None:
    brokers.register("a", "T", "U")
    brokers.register("a", "T", queues=2)
    assert brokers.route("T") == {"a": (4, 6)}, "topics are not read if the version is unchanged"
    brokers.register("a", "T", queues=2, counter=2)
    assert brokers.route("T") == {"a": (2, 6)}
    assert brokers.route("U") == {"a": (4, 6)}, "topics missing in a registration stay, as in RocketMQ"


def test_missing_topics_are_deleted_only_if_so_configured(brokers: Brokers) -> None:
    brokers.table = RouteTable(delete_topic_with_broker_registration=True)
    brokers.register("a", "T", "U")
    brokers.register("a", "T", counter=2)
    assert brokers.table.topics() == ["T"]


def test_registration_of_a_slave_returns_its_master(brokers: Brokers) -> None:
    assert brokers.register("a", "T") is None
    assert brokers.register("a", "X", broker_id=1) == ("a:0", "ha-a:0")
    assert brokers.route("X") is None, "topics of a slave are not registered"
    brokers.table.unregister("a", 0, "a:0")
    route = brokers.table.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: "a:1"}
    brokers.table.unregister("a", 1, "a:1")
    assert brokers.route("T") is None
    assert brokers.table.cluster_info().brokers == {}


def test_replica_that_becomes_master_has_one_id(brokers: Brokers) -> None:
    brokers.register("a", "T")
    brokers.register("a", broker_id=1)
    brokers.table.unregister("a", 0, "a:0")
    brokers.register("a", "T", broker_id=0, address="a:1", counter=2)
    assert brokers.table.cluster_info().brokers["a"].broker_addrs == {0: "a:1"}


def test_topics_of_a_promoted_slave_are_registered(brokers: Brokers) -> None:
    brokers.register("a")
    brokers.register("a", "T", broker_id=1)
    brokers.table.unregister("a", 0, "a:0")
    assert brokers.route("T") is None
    brokers.register("a", "T", broker_id=0, address="a:1")  # with the same topics as before
    assert brokers.route("T") == {"a": (4, 6)}


def test_older_broker_process_with_the_same_id_is_refused(brokers: Brokers) -> None:
    brokers.register("a", "T", state_version=5)
    with pytest.raises(Refused, match="stop it if it is a former master"):
        brokers.register("a", "T", address="elsewhere:0", state_version=4)
    brokers.register("a", "T", address="elsewhere:0", state_version=6)
    assert brokers.table.cluster_info().brokers["a"].broker_addrs == {0: "elsewhere:0"}
    brokers.register("a", "T", address="third:0", state_version=6)  # an equal state version is not older
    assert brokers.table.cluster_info().brokers["a"].broker_addrs == {0: "third:0"}
    brokers.table.unregister("a", 0, "a:0")
    assert brokers.route("T") is not None, "unregistering the former address does not remove the new one"


def test_silent_broker_is_removed_after_its_expiry_time(brokers: Brokers) -> None:
    brokers.register("a", "T")
    brokers.register("b", "T")
    assert brokers.table.record_heartbeat("b:0", 60_000_000_000)
    assert brokers.table.expire(EXPIRY_NS) == []
    assert [live.identity.name for live in brokers.table.expire(EXPIRY_NS + 1)] == ["a"]
    assert brokers.route("T") == {"b": (4, 6)}
    assert not brokers.table.record_heartbeat("a:0", 0)


def test_closed_connection_removes_brokers_without_a_newer_connection(brokers: Brokers) -> None:
    brokers.register("a", "T", connection="first")
    brokers.register("b", "T", connection="other")
    brokers.register("a", "T", connection="second")
    brokers.table.connection_closed("first")
    assert brokers.route("T") == {"a": (4, 6), "b": (4, 6)}
    brokers.table.connection_closed("second")
    assert brokers.route("T") == {"b": (4, 6)}


def test_write_permission_is_wiped_and_restored(brokers: Brokers) -> None:
    brokers.register("a", "T", "U")
    brokers.register("b", "T")
    assert brokers.table.change_write_permission("a", is_writable=False) == 2
    assert brokers.route("T") == {"a": (4, 4), "b": (4, 6)}
    assert brokers.table.change_write_permission("a", is_writable=True) == 2
    assert brokers.route("U") == {"a": (4, 6)}
    assert brokers.table.change_write_permission("unknown", is_writable=False) == 0


def test_registration_restores_wiped_and_deleted_topics(brokers: Brokers) -> None:
    brokers.register("a", "T", "U")
    brokers.table.change_write_permission("a", is_writable=False)
    brokers.register("a", "T", "U", counter=2)
    assert brokers.route("T") == {"a": (4, 6)}
    brokers.table.delete_topic("T")
    brokers.register("a", "T", "U", counter=3)
    assert brokers.route("T") == {"a": (4, 6)}
    brokers.table.unregister("a", 0, "a:0")
    brokers.register("a", "T", "U", counter=3)
    assert brokers.route("T") == {"a": (4, 6)}
    brokers.register("a", "T", "U", counter=4, queues=2)
    assert brokers.route("U") == {"a": (2, 6)}


def test_wiped_topics_stay_wiped_until_the_broker_changes_them(brokers: Brokers) -> None:
    brokers.register("a", "T", "U")
    brokers.table.change_write_permission("a", is_writable=False)
    brokers.register("a", "T", "U", "NEW", counter=2)
    assert [brokers.route(topic) for topic in ("T", "U", "NEW")] == [
        {"a": (4, 4)},
        {"a": (4, 4)},
        {"a": (4, 6)},
    ]
    changed = {**topics("T", "NEW"), **topics("U", queues=8)}
    brokers.register_configs("a", changed, counter=3)
    assert [brokers.route(topic) for topic in ("T", "U")] == [{"a": (4, 4)}, {"a": (8, 6)}]
    brokers.register("a", "T", counter=4)
    assert brokers.route("T") == {"a": (4, 4)}


def test_invalid_topic_of_a_registration_is_skipped_and_logged_once(brokers: Brokers) -> None:
    configs = {**topics("T"), "BAD": {"topicName": "BAD", "readQueueNums": "many"}, **topics("U")}
    with structlog.testing.capture_logs() as logs:
        brokers.register_configs("a", configs)
        brokers.register_configs("a", {**configs, **topics("V")}, counter=2)
    assert brokers.table.topics() == ["T", "U", "V"]
    assert brokers.table.record_heartbeat("a:0", 0)
    invalid = [each for each in logs if each["event"] == "topic_registration_invalid"]
    assert [(each["topic"], "readQueueNums" in each["error"]) for each in invalid] == [("BAD", True)]


def test_a_topic_is_deleted_in_one_cluster_or_in_all(brokers: Brokers) -> None:
    brokers.register("a", "T", "U")
    brokers.table.delete_topic("T", "other")
    assert brokers.route("T") is not None
    brokers.table.delete_topic("T", "C")
    brokers.table.delete_topic("U")
    assert brokers.table.topics() == []


def test_cached_route_is_invalidated_by_every_change(brokers: Brokers) -> None:
    brokers.register("a", "T")
    first = brokers.table.encoded_route("T", None)
    assert brokers.table.encoded_route("T", None) is first
    brokers.register("b", "T")
    assert brokers.table.encoded_route("T", None) != first
    with_order = brokers.table.encoded_route("T", "a:4")
    assert with_order is not None
    assert b'"orderTopicConf":"a:4"' in with_order
    for change in (
        lambda: brokers.table.change_write_permission("a", is_writable=False),
        lambda: brokers.table.unregister("b", 0, "b:0"),
        lambda: brokers.table.delete_topic("T"),
    ):
        before = brokers.table.encoded_route("T", None)
        change()
        assert brokers.table.encoded_route("T", None) != before
    assert brokers.table.encoded_route("T", None) is None
