"""Choice of the broker of the next send if some brokers are slow or down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from cluster.client import MessageQueue, Producer, ProducerConfig
from cluster.client.errors import BrokerBusy, BrokerUnreachable, ConfigInvalid, MessageRejected
from cluster.client.producer.faults import MQFaultStrategy, not_available_ms
from cluster.client.selectors import (
    RoundRobin,
    SelectMessageQueueByHash,
    SelectMessageQueueByMachineRoom,
    SelectMessageQueueByRandom,
)
from store.message.message import Message
from tests.cluster.client.conftest import Cluster

QUEUES = [MessageQueue("T", broker, number) for number in range(4) for broker in "abc"]
MESSAGE = Message("T", b"x")


class ClockAtRest:
    """Clock that advances only when the test sets `now_ms`."""

    now_ms = 1_000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


def strategy(*, is_enabled: bool = True) -> tuple[MQFaultStrategy, ClockAtRest]:
    clock = ClockAtRest()
    return MQFaultStrategy(RoundRobin(), clock, is_enabled=is_enabled), clock


def brokers(faults: MQFaultStrategy, count: int = 12, avoid: str | None = None) -> set[str]:
    return {faults.choose(QUEUES, avoid).broker_name for _ in range(count)}


@pytest.mark.parametrize(
    ("latency_ms", "avoided_ms"),
    [(0, 0), (549, 0), (550, 2_000), (1_800, 5_000), (3_000, 6_000), (5_000, 10_000), (20_000, 30_000)],
)
def test_not_available_ms_equals_rocketmq_5_3_3(latency_ms: int, avoided_ms: int) -> None:
    assert not_available_ms(latency_ms) == avoided_ms


def test_slow_broker_is_avoided_until_its_time_has_passed() -> None:
    faults, clock = strategy()
    assert brokers(faults) == {"a", "b", "c"}
    faults.record_success("b", clock.now_ms - 600)
    assert brokers(faults) == {"a", "c"}
    clock.now_ms += 1_999
    assert brokers(faults) == {"a", "c"}
    clock.now_ms += 1
    assert brokers(faults) == {"a", "b", "c"}
    faults.record_success("b", clock.now_ms - 100)
    assert brokers(faults) == {"a", "b", "c"}


def test_failed_broker_is_avoided_like_a_send_of_ten_seconds() -> None:
    faults, clock = strategy()
    faults.record_failure("b", BrokerBusy(2, "busy"))
    clock.now_ms += 9_999
    assert brokers(faults) == {"a", "c"}
    clock.now_ms += 1
    assert brokers(faults) == {"a", "b", "c"}


def test_reachable_brokers_are_used_if_all_are_to_be_avoided() -> None:
    faults, _ = strategy()
    faults.record_failure("a", BrokerUnreachable("gone"))
    faults.record_failure("b", BrokerBusy(2, "busy"))
    faults.record_failure("c", MessageRejected(13, "invalid on every broker"))
    assert brokers(faults) == {"c"}
    faults.record_failure("c", BrokerUnreachable("gone"))
    assert brokers(faults) == {"b"}
    assert brokers(faults, avoid="b") == {"a", "b", "c"}


def test_disabled_fault_strategy_avoids_only_the_given_broker() -> None:
    faults, _ = strategy(is_enabled=False)
    assert brokers(faults, avoid="b") == {"a", "c"}
    assert ProducerConfig().send_latency_fault_enable is False


def test_producer_avoids_a_failed_broker_until_its_time_has_passed(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = clusters()
    topic = cluster.topic(queues=2)
    clock = ClockAtRest()
    config = ProducerConfig(send_latency_fault_enable=True)
    with Producer(cluster.address, "sends", config=config, clock=clock) as producer:

        def brokers_of_sends(topic: str) -> set[str]:
            return {producer.send(topic, b"x").queue.broker_name for _ in range(4)}

        assert brokers_of_sends(topic) == {"a", "b"}
        cluster.stop_broker("a")
        assert brokers_of_sends(topic) == {"b"}
        cluster.start_broker("a")
        other = cluster.topic(queues=2)  # its route contains both brokers
        assert brokers_of_sends(other) == {"b"}
        clock.now_ms += 10_000
        assert brokers_of_sends(other) == {"a", "b"}


def test_selectors_by_hash_random_and_machine_room() -> None:
    by_hash, at_random = SelectMessageQueueByHash(), SelectMessageQueueByRandom(seed=1)
    assert by_hash(QUEUES, MESSAGE, "key-1") == by_hash(QUEUES, MESSAGE, "key-1")
    assert len({by_hash(QUEUES, MESSAGE, n) for n in range(100)}) == len(QUEUES)
    assert by_hash(QUEUES, MESSAGE, "a") == QUEUES[97 % 12], "Java's hash, as RocketMQ's selector"
    assert {at_random(QUEUES, MESSAGE, None) for _ in range(300)} == set(QUEUES)
    rooms = [MessageQueue("T", broker, n) for broker in ("r1@a", "r2@b", "c") for n in range(3)]
    by_room = SelectMessageQueueByMachineRoom(["r1"])
    assert Counter(by_room(rooms, MESSAGE, None) for _ in range(6)) == dict.fromkeys(rooms[:3], 2)
    assert by_room(rooms, MESSAGE, "key") == by_room(rooms, MESSAGE, "key")
    with pytest.raises(
        ConfigInvalid, match="topic 'T' has no queue in machine rooms r9; its brokers are c, r1@a"
    ):
        SelectMessageQueueByMachineRoom(["r9"])(rooms, MESSAGE, None)


def test_oneway_send_uses_the_selector(cluster: Cluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.address, "sends") as producer:
        expected = SelectMessageQueueByHash()(producer.queues(topic), Message(topic, b""), "k")
        for _ in range(3):
            producer.send_oneway(topic, b"x", selector=SelectMessageQueueByHash(), argument="k")
        result = producer.send(topic, b"x", selector=SelectMessageQueueByHash(), argument="k")
    assert (result.queue, result.queue_offset) == (expected, 3)
