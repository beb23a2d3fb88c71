"""Writes to a topic that does not exist: it is created as by a send, or the error says so in one line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from cluster.client import Admin, Message, Producer
from cluster.client.errors import TopicNotFound
from jobs import export_topic, import_topic
from jobs.writing.commit import commit, prepare_topic
from jobs.writing.partition_writer import PartitionWriter
from jobs.writing.write_job import BUFFER_BYTES, WriteColumns, WriteJob, new_job
from tests.conftest import ClockAtRest
from tests.jobs.conftest import ClusterThread


def job_of(address: str, topic: str, clock: ClockAtRest) -> WriteJob:
    return new_job(topic, address, WriteColumns("n"), BUFFER_BYTES, clock.wall_ms())


def test_write_to_a_new_topic_creates_it(tmp_path: Path, clock: ClockAtRest) -> None:
    cluster = ClusterThread(tmp_path)
    try:
        address = cluster.cluster.nameserver_address
        job = job_of(address, "new", clock)
        prepare_topic(job, "errorifexists")
        receipts = [PartitionWriter(job, number).write([pa.table({"n": [number]})]) for number in range(2)]
        assert commit(job, receipts).rows == 2
        with Admin(address) as admin:
            assert sum(each.max_offset for each in admin.topic_stats("new").offsets.values()) == 2
    finally:
        cluster.stop()


def test_write_to_a_new_topic_is_refused_if_none_is_created(tmp_path: Path, clock: ClockAtRest) -> None:
    cluster = ClusterThread(tmp_path / "cluster", auto_create_topics=False)
    try:
        address = cluster.cluster.nameserver_address
        with pytest.raises(TopicNotFound, match=r"create it with Admin\.create_topic") as refused:
            prepare_topic(job_of(address, "new", clock), "append")
        assert "\n" not in str(refused.value)
        assert refused.value.__suppress_context__
        # An import knows the number of queues, and creates the topic itself.
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topic("exported", queues=3)
            producer.send(Message("exported", b"1"))
            export_topic("exported", tmp_path / "archive", nameservers=address)
            assert import_topic(tmp_path / "archive", "imported", nameservers=address).rows == 1
    finally:
        cluster.stop()
