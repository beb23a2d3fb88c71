"""Producers during a drain by `brokerPermission=4`: no send fails, and later ones go to the other broker."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from cluster.client import Admin, Message, MessageQueue, Producer, ProducerConfig
from tests.cluster.client.conftest import Cluster
from tests.eventually import eventually

Send = Callable[[Producer, str, int], MessageQueue]


def send(producer: Producer, topic: str, number: int) -> MessageQueue:
    return producer.send(topic, b"%d" % number).queue


def send_keyed(producer: Producer, topic: str, number: int) -> MessageQueue:
    return producer.send(topic, b"%d" % number, sharding_key=str(number % 16)).queue


def send_batch(producer: Producer, topic: str, number: int) -> MessageQueue:
    return producer.send_batch([Message(topic, b"%d" % number), Message(topic, b"again")]).queue


def send_async(producer: Producer, topic: str, number: int) -> MessageQueue:
    return producer.send_async(topic, b"%d" % number).result().queue


@pytest.mark.parametrize("send_one", [send, send_keyed, send_batch, send_async])
def test_no_send_fails_while_a_broker_is_drained(clusters: Callable[..., Cluster], send_one: Send) -> None:
    cluster = clusters(brokers=2)
    topic = cluster.topic(queues=2)
    numbers = count()
    with (
        Admin(cluster.address) as admin,
        Producer(cluster.address, "sends", config=ProducerConfig(route_refresh_ms=50)) as producer,
    ):
        names = sorted(admin.brokers())

        def brokers_of_sends() -> set[str]:
            return {send_one(producer, topic, next(numbers)).broker_name for _ in range(32)}

        assert brokers_of_sends() == set(names)
        admin.change_broker_config(names[0], {"brokerPermission": "4"})
        eventually(lambda: brokers_of_sends() == {names[1]})
        admin.change_broker_config(names[0], {"brokerPermission": "6"})
        eventually(lambda: brokers_of_sends() == set(names))
