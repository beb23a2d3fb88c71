"""Elastic brokers on nodes that Ray's autoscaler starts: placement, a lost node, and the end of all nodes."""

from __future__ import annotations

import pytest

from benchmarks.experiments.nodes.local_ray import LocalRay
from cluster import launch
from cluster.autoscale.commands import release_store
from cluster.client import Admin, Producer, PullConsumer
from cluster.control.launch_errors import LaunchRefused
from cluster.control.session.ray_head import MARK_ENV, read_record
from cluster.control.topology.topology_file import TopologyError
from tests.cluster.autoscale.conftest import ElasticCluster, raylets
from tests.eventually import eventually

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.extended]


def brokers(cluster: ElasticCluster) -> dict[str, launch.ActorStatus]:
    return {each.actor.name: each for each in launch.status(cluster.topology) if "broker-" in each.actor.name}


def test_elastic_broker_survives_its_node_and_leaves_no_raylet(elastic: ElasticCluster) -> None:
    # given a broker on a node that the autoscaler started for it
    ready = launch.up(elastic.file)
    before = brokers(elastic)["broker-1-0"]
    assert before.actor.node_ip == "127.0.1.1"
    with pytest.raises(TopologyError, match=r"brokers\[0\]\.resource: no running node has the resource"):
        launch.up(elastic.file, ["brokers.resource=absent"], dry_run=True)
    with Admin(ready.nameservers) as admin, Producer(ready.nameservers) as producer:
        admin.create_topic("kept", queues=1)
        producer.send("kept", b"before")
    # when the node is killed, while its disk survives
    record = read_record(elastic.ray.home)
    assert record is not None
    elastic.ray.kill_node(before.actor.node_ip)
    # then the broker is reported as pending with the reason, and moves to another node with its store
    reasons = []

    def has_moved() -> bool:
        now = brokers(elastic).get("broker-1-0")
        if now is not None and now.failing:
            reasons.append(now.failing)
        return now is not None and not now.failing and now.actor.node_ip not in ("", "127.0.1.1")

    eventually(has_moved, "the broker on another node", within_s=120)
    assert any("pending: " in reason for reason in reasons)
    with PullConsumer(ready.nameservers, "reader") as consumer:
        consumer.assign(consumer.queues("kept"))
        assert [message.body for message in eventually(consumer.poll, "the message")] == [b"before"]
    # and nothing is left of a head whose driver was killed, after the next start has ended it
    LocalRay(elastic.ray.home, ()).stop()
    assert not raylets(record.mark), MARK_ENV


def test_broker_without_its_store_waits_until_it_returns_or_is_released(elastic: ElasticCluster) -> None:
    # given a broker with a message; its store cannot be released while it serves it
    ready = launch.up(elastic.file)
    with Admin(ready.nameservers) as admin, Producer(ready.nameservers) as producer:
        admin.create_topic("kept", queues=1)
        producer.send("kept", b"before")
    with pytest.raises(LaunchRefused, match=r"broker-1 serves .*; only a lost store can be released"):
        release_store(elastic.topology, "broker-1")
    store, elsewhere = elastic.ray.home / "store" / "broker-1-0", elastic.ray.home / "elsewhere"

    def lose_node_and_disk() -> None:
        elastic.ray.kill_node(brokers(elastic)["broker-1-0"].actor.node_ip)
        store.rename(elsewhere)
        eventually(lambda: "the store of broker-1-0 is" in failing(), "the reason", within_s=120)

    def failing() -> str:
        found = brokers(elastic).get("broker-1-0")
        return found.failing if found is not None else ""

    # when its node and its disk are lost, then it waits with the reason, and serves the store that returns
    lose_node_and_disk()
    elsewhere.rename(store)
    with PullConsumer(launch.up(elastic.file).nameservers, "reader") as consumer:
        consumer.assign(consumer.queues("kept"))
        assert [message.body for message in eventually(consumer.poll, "the message")] == [b"before"]
    # when they are lost for good, then it starts with an empty store once the old one is released
    lose_node_and_disk()
    assert release_store(elastic.topology, "broker-1").startswith(f"released {store} on node 127.0.1.")
    with Admin(launch.up(elastic.file).nameservers) as admin:
        assert "kept" not in admin.topics()
