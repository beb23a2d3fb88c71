"""Batches are bounded by the bytes of their decompressed bodies, not by stored bytes or by counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from cluster.client import Admin, Producer, PullConsumer
from jobs import export_topic, import_topic
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.options.topics import TopicNames
from jobs.reading.plan import plan_read
from store.kernels.arrow import MAX_INFLATED_BYTES
from tests.eventually import LIMIT_S

BODY = bytes(3 * 1024 * 1024)  # some KiB in the store
COUNT = 60
LARGE = 2 * MAX_INFLATED_BYTES


@pytest.fixture(scope="module")
def topic(empty_cluster: str) -> str:
    """Return a topic with COUNT compressed messages in one queue, and a small one after each."""
    name = f"large-{uuid4().hex[:8]}"
    with Admin(empty_cluster) as admin, Producer(empty_cluster) as producer:
        admin.create_topic(name, queues=1, brokers=["broker-a"])
        for number in range(COUNT):
            producer.send(name, BODY)
            producer.send(name, b"%d" % number)
    return name


def check(batches: Iterator[pa.RecordBatch]) -> None:
    offsets: list[int] = []
    for batch in batches:
        assert batch.nbytes < LARGE
        lengths = [len(body) for body in batch.column("body").to_pylist()]
        found = batch.column("queueOffset").to_pylist()
        assert [length == len(BODY) for length in lengths] == [offset % 2 == 0 for offset in found]
        offsets += found
    assert offsets == list(range(2 * COUNT))


@pytest.mark.parametrize("map_files", [True, False])
def test_batches_of_a_read_are_bounded(empty_cluster: str, topic: str, map_files: bool) -> None:
    plan = plan_read(ReadOptions(TopicNames((topic,)), nameservers=empty_cluster, map_files=map_files))
    check(plan.reader(plan.ranges).read_all())


def test_rows_of_a_poll_are_bounded(empty_cluster: str, topic: str) -> None:
    def polled() -> Iterator[pa.RecordBatch]:
        with PullConsumer(empty_cluster, f"g-{uuid4().hex[:8]}") as consumer:
            consumer.subscribe(topic)
            rows = 0
            while rows < 2 * COUNT:
                yield (batch := consumer.poll_arrow(timeout_ms=int(LIMIT_S * 1000)))
                rows += batch.num_rows

    check(polled())


def test_export_and_import_of_large_bodies_need_little_memory(
    empty_cluster: str, topic: str, tmp_path: Path
) -> None:
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    assert export_topic(topic, tmp_path, nameservers=empty_cluster).rows == 2 * COUNT
    assert import_topic(tmp_path, f"copy-{topic}", nameservers=empty_cluster).rows == 2 * COUNT
    assert pool.bytes_allocated() - before < LARGE
