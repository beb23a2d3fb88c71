"""Consumers stay up while the machine of their broker loses its power, and the broker starts again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.client import (
    ConsumerConfig,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from store.store_settings import StoreSettings
from tests.cluster.client.conftest import Cluster
from tests.eventually import eventually
from tests.faults.power import PowerLossDisk

BEFORE, AFTER = range(20), range(20, 50)
SMALL = {
    "commit_log_file_bytes": 1 << 20,
    "consume_queue_file_bytes": 20_000,
    "index_slots": 100,
    "index_entries": 400,
}
A_DAY_MS = 86_400_000


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_consumers_skip_and_repeat_nothing_after_a_power_loss(
    clusters: Callable[..., Cluster], tmp_path: Path, flush: str
) -> None:
    """With `flush: async`, the unsynced end of the log is lost, and new messages have its offsets."""
    store = StoreSettings.model_validate({**SMALL, "flush": flush, "flush_interval_ms": A_DAY_MS})
    cluster = clusters(brokers=1, store=store)
    topic = cluster.topic(queues=1)
    root = tmp_path / "0" / "a"
    received: dict[str, list[int]] = {"push": [], "pull": []}

    def listen(messages: list[MessageExt]) -> None:
        received["push"].extend(int(each.body) for each in messages)

    def all_have(numbers: range) -> bool:
        received["pull"] += (int(each.body) for each in pull.poll(timeout_ms=10))
        return all(set(numbers) <= set(each) for each in received.values())

    def send(numbers: range) -> None:
        with Producer(cluster.address, "PG") as producer:
            for number in numbers:
                producer.send(Message(topic, b"%d" % number), queue=MessageQueue(topic, "a", 0))

    push = PushConsumer(
        listener=listen, config=PushConfig(nameservers=cluster.address, group="push", consume_from="earliest")
    )
    pull = PullConsumer(config=ConsumerConfig(nameservers=cluster.address, group="pull"))
    with ExitStack() as stack:
        for consumer in (push, pull):
            stack.enter_context(consumer).subscribe(topic)
        with pytest.MonkeyPatch.context() as patched:
            disk = PowerLossDisk(root, random.Random(1), patched)
            send(BEFORE)
            eventually(lambda: all_have(BEFORE), "the messages before the loss")
            image = disk.cut(tmp_path / "cut")
        cluster.stop_broker("a")
        disk.close()
        shutil.rmtree(root)
        shutil.move(image, root)
        broker = cluster.start_broker("a")
        kept = broker.graph.loop.store.max_offset(topic, 0)
        assert kept == len(BEFORE) if flush == "sync" else kept < len(BEFORE)
        send(AFTER)
        eventually(lambda: all_have(AFTER), "the messages after the loss")
    assert received["pull"] == sorted(received["push"]) == [*BEFORE, *AFTER]
