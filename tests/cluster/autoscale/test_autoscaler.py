"""The autoscaler on nodes of Ray's autoscaler: 1 → 3 → 1 brokers while messages are sent and consumed."""

from __future__ import annotations

import threading
import time

import pytest

from cluster import launch
from cluster.autoscale.commands import autoscaler_status, set_paused
from cluster.client import Admin, ConsumerConfig, Producer, ProducerConfig, PullConsumer
from cluster.client.errors import ClientError
from cluster.session.ray_head import read_record
from tests.cluster.autoscale.conftest import ElasticCluster, raylets, write_topology
from tests.eventually import TIME_SCALE, eventually

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.extended]

HIGH_PER_S, LOW_PER_S = 60, 5
REFRESH_MS = 1_000
RULES = {"throughput_per_broker": 20, "cool_down_s": 8, "step": 2}


class Load(threading.Thread):
    """Sends messages at a rate that may change, each until it is acknowledged, and counts failed attempts."""

    def __init__(self, nameservers: list[str]) -> None:
        super().__init__(daemon=True)
        self.rate_per_s = HIGH_PER_S
        self.sent: list[bytes] = []
        self.brokers: set[str] = set()
        self.gave_up: list[str] = []
        self._is_over = threading.Event()
        self._nameservers = nameservers

    def run(self) -> None:
        config = ProducerConfig(route_refresh_ms=REFRESH_MS)
        with Producer(self._nameservers, config=config) as producer:
            while not self._is_over.wait(1 / self.rate_per_s):
                self._send(producer, b"%d" % len(self.sent))

    def _send(self, producer: Producer, body: bytes) -> None:
        for _ in range(10):
            try:
                self.brokers.add(producer.send("load", body).queue.broker_name)
            except ClientError as error:
                problem = str(error)
                self._is_over.wait(0.2)
            else:
                self.sent.append(body)
                return
        self.gave_up.append(problem)

    def finish(self) -> None:
        self._is_over.set()
        self.join()


def test_brokers_follow_the_load_and_no_message_is_lost(elastic: ElasticCluster) -> None:
    # given an autoscaler and one broker
    rules = {"rules": RULES, "interval_s": 1, "drain_timeout_s": 120 * TIME_SCALE}
    write_topology(elastic.file, autoscale=rules)
    ready = launch.up(elastic.file)
    with Admin(ready.nameservers) as admin:
        admin.create_topic("load", queues=2)
    load = Load(list(ready.nameservers))
    consumed: set[bytes] = set()
    config = ConsumerConfig(route_refresh_ms=REFRESH_MS)

    def status() -> dict[str, object]:
        consumed.update(message.body for message in consumer.poll(timeout_ms=200))
        return autoscaler_status(elastic.topology)

    def running() -> list[str]:
        brokers = status()["brokers"]
        assert isinstance(brokers, list)
        return [each["name"] for each in brokers if each["state"] == "running"]

    with PullConsumer(ready.nameservers, "readers", config=config) as consumer:
        consumer.subscribe("load")
        # when the load is that of three brokers
        load.start()
        eventually(lambda: len(running()) == 3, "three brokers", within_s=180)
        eventually(lambda: running() and len(load.brokers) == 3, "sends to three brokers", within_s=60)
        # and then that of one
        load.rate_per_s = LOW_PER_S
        eventually(lambda: len(running()) == 1 and len(status()["brokers"]) == 1, "one broker", within_s=240)
        time_of_last = time.monotonic()
        eventually(lambda: status() and time.monotonic() - time_of_last > 3, "sends after scale in")
        load.finish()
        # then each send has succeeded, and each message was consumed
        assert not load.gave_up
        eventually(lambda: status() and consumed >= set(load.sent), "all messages", within_s=60)
    set_paused(elastic.topology, paused=True)
    assert autoscaler_status(elastic.topology)["is_paused"]
    # and the nodes of the removed brokers leave; none is left after the head was stopped
    eventually(lambda: len(elastic.raylets()) == 2, "head and one node", within_s=60)
    record = read_record(elastic.ray.home)
    assert record is not None
    elastic.ray.stop()
    assert not raylets(record.mark)
