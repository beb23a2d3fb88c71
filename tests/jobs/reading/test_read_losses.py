"""Messages that are deleted, files that vanish and brokers that stop while a read is running."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.client import Admin, MessageQueue, Producer
from jobs import read_queue
from jobs.job_errors import RANGES_SHOWN, DataLoss, FetchFailed, MissingRange, merge_missing
from jobs.reading.describe import describe_topic
from jobs.reading.reader import SplitsReader
from jobs.reading.splits import Split
from store.store_settings import StoreSettings
from tests.eventually import eventually
from tests.jobs.conftest import STORE, ClusterThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
TOPIC = "expiring"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
BODY = random.Random(1).randbytes(20_000)  # not compressible
COUNT = 100  # messages, in eight CommitLog files


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterThread]:
    """Yield a cluster that deletes all but the last CommitLog file on request."""
    far_hour = (time.localtime().tm_hour + 12) % 24  # at its hour a broker deletes files by itself
    expiry = {"file_reserved_time_h": 0, "clean_interval_ms": 100, "delete_when_h": str(far_hour)}
    settings = {**STORE.model_dump(), **expiry}
    running = ClusterThread(tmp_path, store=StoreSettings.model_validate(settings))
    nameservers = running.cluster.nameserver_address
    with Admin(nameservers) as admin, Producer(nameservers) as producer:
        admin.create_topic(TOPIC, queues=1)
        for _ in range(COUNT):
            producer.send(TOPIC, BODY, queue=QUEUE)
    yield running
    running.stop()


def split_of(nameservers: str) -> Split:
    state = next(each for each in describe_topic(nameservers, TOPIC) if each.queue == QUEUE)
    return Split(QUEUE, 0, COUNT, state.location)


def expire(nameservers: str, split: Split) -> int:
    """Delete the expired files, and return the first offset that exists afterwards."""
    log = Path(split.location.store_root) / "commitlog"
    with Admin(nameservers) as admin:
        admin.clean_broker("broker-a", "expired-files")
        eventually(
            lambda: len([each for each in log.iterdir() if each.name.isdecimal()]) <= 2, "deleted files"
        )
        eventually(
            lambda: admin.beginning_offsets(TOPIC)[QUEUE] > 0, "a first offset after the deleted files"
        )
        return admin.beginning_offsets(TOPIC)[QUEUE]


@pytest.mark.spark
def test_retention_during_a_read_returns_rows_or_missing_ranges(
    spark: SparkSession, cluster: ClusterThread
) -> None:
    nameservers = cluster.cluster.nameserver_address

    def frame(**options: bool):
        return read_queue(spark, TOPIC, nameservers=nameservers, columns=["queueOffset"], **options)

    frames = {
        map_files: (frame(mapFiles=map_files), frame(mapFiles=map_files, failOnDataLoss=False))
        for map_files in (True, False)
    }
    first = expire(nameservers, split_of(nameservers))
    assert 0 < first < COUNT
    for failing, tolerant in frames.values():
        with pytest.raises(Exception, match="DataLoss") as loss:
            failing.collect()
        found = [
            tuple(map(int, each))
            for each in re.findall(rf"{TOPIC}/broker-a/0 \[(\d+), (\d+)\)", str(loss.value))
        ]
        assert found
        assert max(end for _, end in found) <= first
        assert "set failOnDataLoss=False" in str(loss.value)
        assert sorted(row[0] for row in tolerant.collect()) == list(range(first, COUNT))
    with pytest.raises(DataLoss, match=rf"\[0, {first}\): before the first offset"):
        read_queue(spark, TOPIC, nameservers=nameservers, startingOffsets=0)


@pytest.mark.parametrize("map_files", [True, False])
def test_error_lists_all_missing_ranges_of_a_split(cluster: ClusterThread, map_files: bool) -> None:
    split = split_of(cluster.cluster.nameserver_address)
    first = expire(cluster.cluster.nameserver_address, split)
    with pytest.raises(DataLoss) as loss:
        list(SplitsReader([split], ("body",), True, map_files).read_all())
    missing = loss.value.missing
    assert (missing[0].begin, missing[-1].end) == (0, first)
    assert all(left.end == right.begin for left, right in pairwise(missing))


def test_file_deleted_in_the_middle_of_a_read_names_queue_and_range(cluster: ClusterThread) -> None:
    split = split_of(cluster.cluster.nameserver_address)
    batches = SplitsReader([split], ("queueOffset",), True, True).read_all()
    before = next(batches).column(0).to_pylist()
    first = expire(cluster.cluster.nameserver_address, split)
    with pytest.raises(DataLoss, match=f"{TOPIC}/broker-a/0 .*CommitLog file .*No such file") as loss:
        list(batches)
    assert [loss.value.missing[0].begin, loss.value.missing[-1].end] == [before[-1] + 1, first]


def test_broker_that_stops_in_the_middle_of_a_read_names_range(cluster: ClusterThread) -> None:
    nameservers = cluster.cluster.nameserver_address
    with Producer(nameservers) as producer:
        for _ in range(1000):  # more than two responses
            producer.send(TOPIC, BODY, queue=QUEUE)
    split = Split(QUEUE, 0, COUNT + 1000, split_of(nameservers).location)
    batches = SplitsReader([split], ("queueOffset",), False, False).read_all()
    read = next(batches).column(0).to_pylist()[-1] + 1
    assert read < split.end
    cluster.stop()
    left: list[int] = []
    with pytest.raises(FetchFailed) as failed:
        left.extend(offset for batch in batches for offset in batch.column(0).to_pylist())
    read = left[-1] + 1 if left else read
    assert f"{TOPIC}/broker-a/0 [{read}, {split.end}): " in str(failed.value)
    assert "start broker broker-a and run the job again" in str(failed.value)
    with pytest.raises(FetchFailed, match=rf"broker-a/0 \[0, {split.end}\): cannot connect to broker"):
        next(SplitsReader([split], ("body",), True, False).read_all())


@pytest.mark.spark
def test_spark_error_names_the_stopped_broker(spark: SparkSession, cluster: ClusterThread) -> None:
    frame = read_queue(spark, TOPIC, nameservers=cluster.cluster.nameserver_address, mapFiles=False)
    mapped = read_queue(spark, TOPIC, nameservers=cluster.cluster.nameserver_address, columns=["body"])
    cluster.stop()
    with pytest.raises(Exception, match="FetchFailed") as failed:
        frame.count()
    assert re.search(rf"{TOPIC}/broker-a/0 \[\d+, \d+\): cannot connect to broker 127", str(failed.value))
    assert "start broker broker-a and run the job again" in str(failed.value)
    assert mapped.count() == COUNT  # the files are still there


def test_adjacent_ranges_with_one_reason_are_merged_and_the_list_is_short() -> None:
    ranges = [MissingRange(*QUEUE, *each) for each in ((0, 4, "x"), (4, 9, "x"), (9, 10, "y"), (20, 21, "y"))]
    merged = merge_missing(ranges)
    assert [(each.begin, each.end, each.reason) for each in merged] == [
        (0, 9, "x"),
        (9, 10, "y"),
        (20, 21, "y"),
    ]
    many = DataLoss([MissingRange(*QUEUE, 2 * n, 2 * n + 1, "x") for n in range(RANGES_SHOWN + 7)])
    assert "27 requested messages are missing" in str(many)
    assert "; and 7 more ranges" in str(many)
