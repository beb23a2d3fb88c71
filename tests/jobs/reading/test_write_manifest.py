"""Manifests: their encoding, and which messages a committed read returns. Without Spark."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from actors.broker.core.metadata.internal_topics import WRITE_MANIFEST_TOPIC
from cluster.client import Admin, Producer
from jobs.reading.committed import committed_ranges
from jobs.reading.describe import describe_topic
from jobs.reading.reader import SplitsReader
from jobs.reading.splits import choose_ranges
from jobs.reading.starting_offsets import EARLIEST, LATEST, Offsets
from jobs.reading.write_manifest import (
    WriteManifest,
    WrittenRange,
    decode_write_manifests,
    encode_parts,
    load_write_manifests,
)
from jobs.writing.commit import commit, make_write_manifest, prepare_topic
from jobs.writing.partition_writer import PartitionReceipt, PartitionWriter
from jobs.writing.write_job import BUFFER_BYTES, WriteColumns, WriteJob, new_job
from store.message.message_queue import MessageQueue
from tests.conftest import ClockAtRest
from tests.jobs.conftest import Orders

RANGES = [WrittenRange("broker-a", 0, 5, 9), WrittenRange("broker-b", 1, 0, 2)]


@pytest.fixture
def topic(orders: Orders, request: pytest.FixtureRequest) -> str:
    name = request.node.name
    with Admin(orders.nameservers) as admin:
        admin.create_topic(name, queues=2)
    return name


def job_for(orders: Orders, topic: str, clock: ClockAtRest) -> WriteJob:
    job = new_job(topic, orders.nameservers, WriteColumns("n"), BUFFER_BYTES, clock.wall_ms())
    prepare_topic(job, "append")
    return job


def table(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def committed(orders: Orders, topic: str) -> list[int]:
    """Return the bodies that a committed read returns."""
    ranges = committed_ranges(orders.nameservers, [topic])
    splits, _ = choose_ranges(describe_topic(orders.nameservers, topic), Offsets(EARLIEST), Offsets(LATEST))
    reader = SplitsReader(splits, ("body",), True, True, row_filters=[ranges])
    batches = [batch for split in splits for batch in reader.read_split(split)]
    assert all(batch.schema.names == ["body"] for batch in batches)
    return sorted(int(body) for batch in batches for body in batch.column("body").to_pylist())


def test_only_the_attempt_in_the_manifest_is_visible(orders: Orders, topic: str, clock: ClockAtRest) -> None:
    job = job_for(orders, topic, clock)
    overtaken = PartitionWriter(job, 0, attempt=0).write([table(1, 2), table(3)])
    finished = PartitionWriter(job, 0, attempt=1).write([table(1, 2), table(3)])
    assert (overtaken.rows, finished.rows, finished.attempt) == (3, 3, 1)
    assert committed(orders, topic) == []
    assert commit(job, [finished]).rows == 3
    assert committed(orders, topic) == [1, 2, 3]


def test_attempts_and_partitions_give_rows_stable_unique_keys(
    orders: Orders, topic: str, clock: ClockAtRest
) -> None:
    job = job_for(orders, topic, clock)
    for partition, attempt in ((0, 0), (1, 0), (1, 1)):
        PartitionWriter(job, partition, attempt).write([table(*range(partition * 10, partition * 10 + 10))])
    with Admin(orders.nameservers) as admin:
        found = {
            row: {message.uniq_key for message in admin.messages_by_key(topic, key)}
            for row, key in (
                (0, job.uniq_keys(0).next_block(1).key(0)),
                (10, job.uniq_keys(1).next_block(1).key(0)),
            )
        }
    assert [len(each) for each in found.values()] == [1, 1]
    assert found[0].isdisjoint(found[10])


def test_manifest_counts_once_all_of_its_parts_are_stored(
    orders: Orders, topic: str, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.reading.write_manifest.RANGES_PER_PART", 1)
    job = job_for(orders, topic, clock)
    queues = [MessageQueue(topic, "broker-a", number) for number in range(2)]
    receipts = [PartitionWriter(job, n, queue=queue).write([table(n)]) for n, queue in enumerate(queues)]
    manifest = make_write_manifest(job.job_id, topic, receipts)
    first, *rest = encode_parts(manifest)
    assert rest
    with Producer(orders.nameservers) as producer:
        for body in (first, b"not a manifest", *rest[:-1], first):
            producer.send(WRITE_MANIFEST_TOPIC, body, tags=topic)
        with capture_logs() as logs:
            assert committed(orders, topic) == []
        assert [each["event"] for each in logs] == ["manifest_invalid"]
        producer.send(WRITE_MANIFEST_TOPIC, rest[-1], tags=topic)
    assert load_write_manifests(orders.nameservers, [topic]) == [manifest]
    assert committed(orders, topic) == [0, 1]


def test_manifest_of_another_version_is_skipped_and_logged() -> None:
    manifest = WriteManifest("JOB", "T", 6, RANGES)
    (body,) = encode_parts(manifest)
    assert decode_write_manifests([body, body]) == [manifest]
    with capture_logs() as logs:
        assert decode_write_manifests([body.replace(b'"version":1', b'"version":2')]) == []
    assert [each["event"] for each in logs] == ["manifest_version_unknown"]


def test_manifest_joins_adjacent_ranges_of_partitions() -> None:
    receipts = [
        PartitionReceipt(0, 0, 4, [WrittenRange("a", 0, 4, 6), WrittenRange("a", 0, 0, 2)]),
        PartitionReceipt(
            1, 2, 5, [WrittenRange("a", 0, 2, 4), WrittenRange("a", 0, 7, 8), WrittenRange("a", 1, 8, 10)]
        ),
    ]
    manifest = make_write_manifest("JOB", "T", receipts)
    assert manifest.rows == 9
    assert manifest.ranges == [("a", 0, 0, 6), ("a", 0, 7, 8), ("a", 1, 8, 10)]
    (empty,) = encode_parts(make_write_manifest("JOB", "T", []))
    assert decode_write_manifests([empty]) == [WriteManifest("JOB", "T", 0, [])]


def test_messages_copied_to_another_topic_are_visible_there(
    orders: Orders, topic: str, clock: ClockAtRest
) -> None:
    job = job_for(orders, topic, clock)
    copies = new_job(
        f"{topic}-copy", orders.nameservers, WriteColumns("n"), 1, clock.wall_ms(), random.Random(1)
    )
    assert copies.prefix[:6] != job.prefix[:6]
    with Producer(orders.nameservers) as producer:
        producer.send_table(topic, table(7), body="n", uniq_keys=copies.uniq_keys(0))
    assert committed(orders, topic) == [7]
