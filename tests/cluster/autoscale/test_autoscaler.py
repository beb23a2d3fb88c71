"""The autoscaler on nodes of Ray's autoscaler: 1 → 3 → 1 brokers while messages are sent and consumed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from actors.host.ray_port import ActorMethodFailed, ActorUnavailable
from cluster import launch
from cluster.autoscale.commands import autoscaler_status, set_paused
from cluster.client import Admin, ConsumerConfig, Producer, ProducerConfig, PullConsumer
from cluster.client.errors import ClientError
from cluster.control.session.ray_head import read_record
from tests.cluster.autoscale.conftest import ElasticCluster, elastic_brokers, raylets, write_topology
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


def test_brokers_follow_the_load_and_no_message_is_lost(elastic: ElasticCluster, tmp_path: Path) -> None:
    # given an autoscaler and one broker
    archives = tmp_path / "archives"
    rules = {"rules": RULES, "interval_s": 1, "drain_timeout_s": 120 * TIME_SCALE, "export_to": str(archives)}
    write_topology(elastic.file, autoscale=rules)
    ready = launch.up(elastic.file)
    with Admin(ready.nameservers) as admin:
        admin.create_topic("load", queues=2)
    load = Load(list(ready.nameservers))
    consumed: dict[bytes, str] = {}
    config = ConsumerConfig(route_refresh_ms=REFRESH_MS)

    def status() -> dict[str, object]:
        consumed.update((each.body, each.broker_name) for each in consumer.poll(timeout_ms=200))
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
        (remaining,) = running()
        time_of_last = time.monotonic()
        eventually(lambda: status() and time.monotonic() - time_of_last > 3, "sends after scale in")
        load.finish()
        # then each send has succeeded, and each message was consumed
        assert not load.gave_up
        eventually(lambda: status() and consumed.keys() >= set(load.sent), "all messages", within_s=60)
    # and the messages of the removed brokers are exported
    exported = ds.dataset(archives / "load", partitioning=None, format="parquet").to_table(columns=["body"])
    elsewhere = {body for body, broker in consumed.items() if broker != remaining}
    assert set(exported["body"].to_pylist()) == elsewhere
    set_paused(elastic.topology, paused=True)
    assert autoscaler_status(elastic.topology)["is_paused"]
    # and the nodes of the removed brokers leave; none is left after the head was stopped
    eventually(lambda: len(elastic.raylets()) == 2, "head and one node", within_s=60)
    record = read_record(elastic.ray.home)
    assert record is not None
    elastic.ray.stop()
    assert not raylets(record.mark)


def test_lost_node_and_killed_autoscaler_do_not_keep_brokers_from_the_target(elastic: ElasticCluster) -> None:
    # given an autoscaler that adds brokers
    rules = {"rules": RULES, "interval_s": 1, "drain_timeout_s": 120 * TIME_SCALE}
    write_topology(elastic.file, autoscale=rules)
    ready = launch.up(elastic.file)
    with Admin(ready.nameservers) as admin:
        admin.create_topic("load", queues=2)
    load = Load(list(ready.nameservers))
    consumed: set[bytes] = set()

    def brokers() -> dict[str, str]:
        consumed.update(message.body for message in consumer.poll(timeout_ms=200))
        try:
            found = autoscaler_status(elastic.topology)["brokers"]
        except (ActorUnavailable, ActorMethodFailed):  # it restarts
            return {}
        return {each["name"]: each["state"] for each in found}

    config = ConsumerConfig(route_refresh_ms=REFRESH_MS)
    with PullConsumer(ready.nameservers, "readers", config=config) as consumer:
        consumer.subscribe("load")
        load.start()
        eventually(lambda: list(brokers().values()).count("running") >= 2, "a second broker", within_s=180)
        # when the node of the first broker and the autoscaler are killed
        status = {each.actor.name: each.actor for each in launch.status(elastic.topology)}
        elastic.ray.kill_node(status["broker-1-0"].node_ip)
        os.kill(status["autoscaler"].pid, signal.SIGKILL)
        # then all brokers run in the end, and no acknowledged message is lost: the disk has survived
        eventually(lambda: list(brokers().values()).count("running") == 3, "three brokers", within_s=240)
        load.finish()
        eventually(lambda: bool(brokers()) and consumed >= set(load.sent), "all messages", within_s=90)
    again = {each.actor.name: each.actor for each in launch.status(elastic.topology)}
    assert again["autoscaler"].pid != status["autoscaler"].pid


def test_broker_whose_node_is_lost_while_draining_is_removed_in_the_end(elastic: ElasticCluster) -> None:
    # given two brokers, of which the load needs one
    limits = {
        "rules": {**RULES, "min": 1, "cool_down_s": 25},
        "interval_s": 1,
        "drain_timeout_s": 240 * TIME_SCALE,
    }
    write_topology(elastic.file, autoscale=limits, brokers=elastic_brokers(min=2))
    ready = launch.up(elastic.file)
    with Admin(ready.nameservers) as admin:
        admin.create_topic("load", queues=2)
    load = Load(list(ready.nameservers))
    load.rate_per_s = LOW_PER_S
    consumed: set[bytes] = set()

    def brokers() -> dict[str, str]:
        consumed.update(message.body for message in consumer.poll(timeout_ms=200))
        return {each["name"]: each["state"] for each in autoscaler_status(elastic.topology)["brokers"]}

    config = ConsumerConfig(route_refresh_ms=REFRESH_MS)
    with PullConsumer(ready.nameservers, "readers", config=config) as consumer:
        consumer.subscribe("load")
        load.start()
        eventually(lambda: "draining" in brokers().values(), "a drain", within_s=90)
        (victim,) = [name for name, state in brokers().items() if state == "draining"]
        # when the node of the draining broker is killed, while its disk survives
        (node_ip,) = [
            each.actor.node_ip for each in launch.status(elastic.topology) if each.actor.name == f"{victim}-0"
        ]
        elastic.ray.kill_node(node_ip)
        # then it is drained on another node and removed, and no acknowledged message is lost
        eventually(lambda: list(brokers().values()) == ["running"], "one broker", within_s=240)
        load.finish()
        assert not load.gave_up
        eventually(lambda: bool(brokers()) and consumed >= set(load.sent), "all messages", within_s=90)
