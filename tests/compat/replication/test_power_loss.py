"""A Java push consumer stays up while its broker loses its power, and starts again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.client import Message, MessageQueue, Producer
from store.store_settings import StoreSettings
from tests.cluster.client.conftest import Cluster
from tests.cluster.client.consumer.test_power_loss import SMALL
from tests.compat.agent import Agent
from tests.compat.build import CLIENT, JavaKit
from tests.faults.power import PowerLossDisk

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.extended]

COUNT = 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "stores", brokers=1, store=StoreSettings.model_validate(SMALL))
    yield cluster
    cluster.stop()


def test_java_consumer_skips_and_repeats_nothing_after_a_power_loss(
    kit: JavaKit, cluster: Cluster, tmp_path: Path
) -> None:
    """With `flush: sync`; the offsets that the broker has not saved yet are lost."""
    topic, root = cluster.topic(queues=1), tmp_path / "stores" / "a"

    def send(numbers: range) -> None:
        with Producer(cluster.address, "PG") as producer:
            for number in numbers:
                producer.send(Message(topic, b"%d" % number), queue=MessageQueue(topic, "a", 0))

    with Agent(kit, CLIENT, cluster.address, tmp_path / "java") as java:
        java.call("push_start", name="java", group="java", topic=topic)
        with pytest.MonkeyPatch.context() as patched:
            disk = PowerLossDisk(root, random.Random(1), patched)
            send(range(COUNT))
            java.received("java", COUNT)
            image = disk.cut(tmp_path / "cut")
        cluster.stop_broker("a")
        disk.close()
        shutil.rmtree(root)
        shutil.move(image, root)
        cluster.start_broker("a")
        send(range(COUNT, 2 * COUNT))
        received = [int(message["body"]) for message in java.received("java", 2 * COUNT)]
    assert sorted(received) == [*range(2 * COUNT)]
