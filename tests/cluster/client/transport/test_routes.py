"""Topic routes: queues for sends, and keys that keep their queues while a broker restarts."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.wire.bodies.routes import TopicRouteData
from cluster.client.errors import BrokerUnreachable
from cluster.client.selectors import RoundRobin, queue_index
from cluster.client.transport.topic_route import TopicRoute, keep_departed, route_of
from store.message.message_queue import MessageQueue


def broker(name: str, address: str) -> dict[str, object]:
    return {"brokerName": name, "cluster": "C", "brokerAddrs": {"0": address}}


def queues(name: str, count: int, perm: int = 6) -> dict[str, object]:
    return {"brokerName": name, "perm": perm, "readQueueNums": count, "writeQueueNums": count}


def route(topic: str, body: dict[str, object]) -> TopicRoute:
    return route_of(topic, TopicRouteData.decode(orjson.dumps(body)))


def two_brokers() -> TopicRoute:
    body = {
        "brokerDatas": [broker("b", "127.0.0.1:2"), broker("a", "127.0.0.1:1")],
        "queueDatas": [queues("b", 2), queues("a", 2)],
    }
    return route("T", body)


def only_broker_b() -> TopicRoute:
    return route("T", {"brokerDatas": [broker("b", "127.0.0.1:2")], "queueDatas": [queues("b", 2)]})


def test_writable_alternates_brokers_and_keyed_is_sorted() -> None:
    both = two_brokers()
    assert [queue.broker_name for queue in both.writable] == ["a", "b", "a", "b"]
    assert [queue[1:] for queue in both.keyed] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert both.master("b") == "127.0.0.1:2"


def test_departed_broker_stays_in_keyed_but_not_in_writable() -> None:
    now = keep_departed(two_brokers(), only_broker_b(), now_ms=1_000, sticky_ms=120_000)
    assert now.keyed == two_brokers().keyed
    assert {queue.broker_name for queue in now.writable} == {"b"}
    assert now.master("a") == "127.0.0.1:1"


def test_whole_results_need_a_master_of_each_broker() -> None:
    slave = {"brokerName": "b", "cluster": "C", "brokerAddrs": {"2": "127.0.0.1:3"}}
    body = {
        "brokerDatas": [broker("a", "127.0.0.1:1"), slave],
        "queueDatas": [queues("a", 2), queues("b", 2)],
    }
    assert route("T", body).masters() == {"a": "127.0.0.1:1"}
    with pytest.raises(BrokerUnreachable, match="broker b has no master"):
        route("T", body).all_masters()
    assert two_brokers().all_masters() == two_brokers().masters()


def test_queues_stay_writable_if_all_brokers_left_the_route() -> None:
    both = two_brokers()
    now = keep_departed(both, TopicRoute("T"), now_ms=1_000, sticky_ms=120_000)
    assert now.writable == both.writable
    assert (
        keep_departed(now, only_broker_b(), now_ms=2_000, sticky_ms=120_000).writable
        == only_broker_b().writable
    )


def test_departed_broker_is_dropped_after_sticky_ms() -> None:
    left = keep_departed(two_brokers(), only_broker_b(), now_ms=1_000, sticky_ms=120_000)
    waiting = keep_departed(left, only_broker_b(), now_ms=120_999, sticky_ms=120_000)
    gone = keep_departed(waiting, only_broker_b(), now_ms=121_000, sticky_ms=120_000)
    assert len(waiting.keyed) == 4
    assert gone == only_broker_b()


def test_returned_broker_has_its_new_address() -> None:
    left = keep_departed(two_brokers(), only_broker_b(), now_ms=0, sticky_ms=120_000)
    body = {
        "brokerDatas": [broker("b", "127.0.0.1:2"), broker("a", "127.0.0.1:9")],
        "queueDatas": [queues("a", 2), queues("b", 2)],
    }
    back = keep_departed(left, route("T", body), now_ms=5_000, sticky_ms=120_000)
    assert back.master("a") == "127.0.0.1:9"
    assert back.keyed == two_brokers().keyed
    assert all(share.left_at_ms is None for share in back.shares)


def test_order_topic_lists_queues_of_missing_brokers_too() -> None:
    body = {
        "brokerDatas": [broker("b", "127.0.0.1:2")],
        "queueDatas": [queues("b", 2)],
        "orderTopicConf": "a:1;b:2",
    }
    assert [queue[1:] for queue in route("T", body).keyed] == [("a", 0), ("b", 0), ("b", 1)]


def test_permissions_determine_readable_and_writable_queues() -> None:
    body = {
        "brokerDatas": [broker("a", "x:1"), broker("b", "x:2")],
        "queueDatas": [queues("a", 1, perm=4), queues("b", 1, perm=2)],
    }
    now = route("T", body)
    assert [queue.broker_name for queue in now.writable] == ["b"]
    assert [queue.broker_name for queue in now.readable] == ["a"]


def test_round_robin_avoids_the_failed_broker_if_possible() -> None:
    turns = RoundRobin()
    both = two_brokers().writable
    assert turns.choose(both, avoid_broker="a").broker_name == "b"
    alone = [MessageQueue("T", "a", 0)]
    assert turns.choose(alone, avoid_broker="a") == alone[0]


def test_round_robin_uses_every_queue() -> None:
    turns = RoundRobin()
    both = two_brokers().writable
    assert {turns.choose(both) for _ in range(4)} == set(both)


@given(st.text(), st.integers(1, 64))
def test_queue_index_is_stable_and_in_range(key: str, count: int) -> None:
    assert 0 <= queue_index(key, count) < count
    assert queue_index(key, count) == queue_index(key, count)


def test_queue_index_equals_rocketmq() -> None:
    # Java: Math.abs("TagA".hashCode() % 7), and a key with a negative hash code.
    assert queue_index("TagA", 7) == 2598919 % 7
    assert queue_index("N14228", 8) == abs(_java_remainder("N14228", 8))


def _java_remainder(key: str, count: int) -> int:
    value = 0
    for character in key:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    value = value - (1 << 32) if value >> 31 else value
    return -(-value % count) if value < 0 else value % count


def test_one_group_with_replicas_is_known_by_its_slaves() -> None:
    addresses = {"1": "127.0.0.1:2"}  # between two masters
    body = {
        "brokerDatas": [{"brokerName": "a", "cluster": "C", "brokerAddrs": addresses}],
        "queueDatas": [queues("a", 2)],
    }
    assert route("T", body).has_one_group
    assert not only_broker_b().has_one_group
    assert not two_brokers().has_one_group
