"""The loss of Ray's GCS, without which no actor survives: `raymq up` brings back all brokers and messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import launch
from cluster.autoscale.commands import autoscaler_status
from cluster.client import Admin, Producer, ProducerConfig, PullConsumer
from cluster.control.session.ray_head import marked_processes, read_record
from cluster.control.session.ray_session import disconnect
from tests.cluster.autoscale.conftest import ElasticCluster, write_topology
from tests.cluster.conftest import RayMQ
from tests.cluster.ray_helpers import ensure_up
from tests.eventually import eventually

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.extended]


def kill_gcs(home: Path) -> None:
    record = read_record(home)
    assert record is not None
    (gcs,) = [each for each in marked_processes(record.mark) if each.name() == "gcs_server"]
    gcs.kill()
    gcs.wait()


def send(producer: Producer, sent: set[bytes], count: int) -> None:
    for _ in range(count):
        body = b"%d" % len(sent)
        producer.send("kept", body)
        sent.add(body)


def consume(nameservers: list[str], expected: set[bytes]) -> None:
    found: set[bytes] = set()
    with PullConsumer(nameservers, "reader") as consumer:
        consumer.assign(consumer.queues("kept"))

        def has_all() -> bool:
            found.update(message.body for message in consumer.poll(timeout_ms=200))
            return found >= expected

        eventually(has_all, "all acknowledged messages")


def test_up_after_the_gcs_is_lost_serves_all_acknowledged_messages(raymq: RayMQ) -> None:
    sent: set[bytes] = set()
    ensure_up(raymq)
    disconnect()
    with Admin(raymq.nameservers) as admin, Producer(raymq.nameservers) as producer:
        admin.create_topic("kept", queues=2)
        send(producer, sent, 20)
        # when the GCS is killed: the brokers accept messages until Ray ends them
        kill_gcs(raymq.home)
        send(producer, sent, 20)
    # then the next start ends what is left of that head, and all messages are there
    done = raymq.run("up")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "the last head does not run any more" in done.stdout
    consume(raymq.nameservers, sent)


def test_elastic_brokers_are_started_again_after_the_gcs_is_lost(elastic: ElasticCluster) -> None:
    # given two brokers, of which the autoscaler added one
    rules = {"rules": {"min": 2, "throughput_per_broker": 100}, "interval_s": 1}
    write_topology(elastic.file, autoscale=rules)
    ready = launch.up(elastic.file)
    with Admin(ready.nameservers) as admin:
        admin.create_topic("kept", queues=2)

    def running() -> list[str]:
        found = autoscaler_status(elastic.topology)["brokers"]
        return [each["name"] for each in found if each["state"] == "running"]

    eventually(lambda: len(running()) == 2, "a second broker", within_s=120)
    sent: set[bytes] = set()
    with Producer(ready.nameservers, config=ProducerConfig(route_refresh_ms=1000)) as producer:
        eventually(lambda: len(producer.queues("kept")) == 4, "the queues of both brokers")
        send(producer, sent, 40)
    # when the GCS is lost and Ray's head is started again, without an autoscaler of RayMQ
    kill_gcs(elastic.ray.home)
    elastic.ray.start()
    write_topology(elastic.file)
    again = launch.up(elastic.file)
    # then both brokers serve, although `min` is 1: the second one was not drained
    assert {each.actor.name for each in launch.status(elastic.topology)} >= {"broker-1-0", "broker-2-0"}
    consume(again.nameservers, sent)
