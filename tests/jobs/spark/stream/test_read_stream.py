"""`read_stream` in queries of a local Spark session."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from cluster.client import Admin, ClientError, Producer
from jobs import read_stream
from jobs.job_errors import OffsetsInvalid, OptionInvalid
from jobs.reading.splits import QueueState
from jobs.spark.stream.manifest_directory import StreamManifestDirectory
from jobs.spark.stream.read_stream import TopicQueues
from jobs.spark.stream.stream_errors import CheckpointMismatch
from jobs.spark.stream.stream_manifest import Row
from store.common.clock import SystemClock
from tests.eventually import LIMIT_S, eventually
from tests.jobs.conftest import ClusterThread, Orders
from tests.jobs.restored_broker import TOPIC, RestoredBroker
from tests.jobs.spark.parquet_sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def sink(spark: SparkSession, orders: Orders, tmp_path: Path) -> Iterator[Callable[[str], Sink]]:
    """Return a function that creates a topic with two queues on each broker, and a stream of it."""

    def create(name: str) -> Sink:
        topic = f"{name}-{uuid4().hex[:8]}"  # a repeated test needs a new topic
        with Admin(orders.nameservers) as admin:
            admin.create_topic(topic, queues=2)
        return Sink(spark, orders.nameservers, topic, tmp_path)

    yield create
    for query in spark.streams.active:
        query.stop()


def send(orders: Orders, topic: str, numbers: range) -> list[str]:
    with Producer(orders.nameservers) as producer:
        for number in numbers:
            producer.send(topic, b"%06d" % number)
    return [f"{number:06d}" for number in numbers]


def test_available_now_reads_in_limited_batches_and_resumes(
    orders: Orders, sink: Callable[[str], Sink]
) -> None:
    stream = sink("stream-batches")
    sent = send(orders, stream.topic, range(100))
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
    assert stream.drain(**options) == [40, 40, 20]
    assert stream.bodies() == sent
    assert stream.drain(**options) == []
    assert stream.batches() == 3
    sent += send(orders, stream.topic, range(100, 130))
    assert stream.drain(**options) == [30]
    assert stream.bodies() == sent


def test_running_query_reads_new_messages_queues_and_brokers(
    orders: Orders, spark: SparkSession, tmp_path: Path
) -> None:
    with Admin(orders.nameservers) as admin:
        topic = f"stream-grows-{uuid4().hex[:8]}"
        admin.create_topic(topic, queues=1, brokers=["broker-a"])
        stream = Sink(spark, orders.nameservers, topic, tmp_path)
        send(orders, topic, range(5))
        query = stream.start()
        try:
            sent = send(orders, topic, range(5, 10))
            eventually(lambda: stream.bodies() == sent, "messages after the start")
            admin.create_topic(topic, queues=2, brokers=["broker-b"])
            sent += send(orders, topic, range(10, 30))
            eventually(lambda: stream.bodies() == sent, "messages of the new queues")
            assert query.exception() is None
        finally:
            query.stop()
    rows = spark.read.parquet(str(tmp_path / "output")).select("brokerName").distinct().collect()
    assert {row["brokerName"] for row in rows} == {"broker-a", "broker-b"}


@pytest.mark.parametrize("name", ["[prod]", "{a,b}", "a*b?", "100% of #1 \\ x", "a:b"])
def test_checkpoint_location_is_not_a_pattern(
    spark: SparkSession, orders: Orders, tmp_path: Path, name: str
) -> None:
    topic = f"stream-path-{uuid4().hex[:8]}"
    with Admin(orders.nameservers) as admin:
        admin.create_topic(topic, queues=2)
    stream = Sink(spark, orders.nameservers, topic, tmp_path)
    stream.checkpoint = str(tmp_path / name)
    sent = send(orders, topic, range(10))
    assert stream.drain(startingOffsets="earliest", maxOffsetsPerTrigger="6") == [6, 4]
    sent += send(orders, topic, range(10, 13))
    assert stream.drain(startingOffsets="earliest") == [3]
    assert stream.bodies() == sent


def test_new_query_starts_at_a_timestamp(orders: Orders, sink: Callable[[str], Sink]) -> None:
    stream = sink("stream-by-time")
    send(orders, stream.topic, range(8))
    with Admin(orders.nameservers) as admin:
        queues = admin.end_offsets(stream.topic)
        newest_ms = max(
            message.store_timestamp
            for queue, end in queues.items()
            for message in admin.messages_at(queue, 0, end)
        )
        eventually(lambda: SystemClock().wall_ms() > newest_ms, "a later time")
    sent = send(orders, stream.topic, range(8, 16))
    assert stream.drain(startingTimestamp=newest_ms + 1) == [8]
    assert stream.bodies() == sent


def test_idle_query_starts_no_batch_and_keeps_its_start(orders: Orders, sink: Callable[[str], Sink]) -> None:
    stream = sink("stream-idle")
    send(orders, stream.topic, range(5))
    query = stream.start()
    source = Path(stream.checkpoint, "raymq", stream.topic, "source.json")
    eventually(source.exists, "the starting positions")
    query.stop()
    assert not Path(stream.checkpoint, "commits", "0").exists()
    sent = send(orders, stream.topic, range(5, 10))
    assert stream.drain() == [5]
    assert stream.bodies() == sent


def test_stopped_query_plans_no_batch(
    orders: Orders, sink: Callable[[str], Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = sink("stream-stopped")
    polling, resumed = threading.Event(), threading.Event()
    states = TopicQueues.states

    def wait_in_planner(queues: TopicQueues) -> list[QueueState]:
        if threading.current_thread().name == f"raymq-stream-{stream.topic}":
            polling.set()
            assert resumed.wait(LIMIT_S)
        return states(queues)

    monkeypatch.setattr(TopicQueues, "states", wait_in_planner)
    query = stream.start()
    assert polling.wait(LIMIT_S)
    query.stop()
    sent = send(orders, stream.topic, range(5))
    resumed.set()
    assert stream.drain(maxOffsetsPerTrigger=3) == [3, 2]
    assert stream.bodies() == sent


def test_restarted_query_waits_for_the_manifest_of_the_stopped_one(
    orders: Orders, sink: Callable[[str], Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = sink("stream-overlap")
    writing, stopped, loaded, written = (threading.Event() for _ in range(4))
    write, load = StreamManifestDirectory.write, StreamManifestDirectory.load

    def write_late(directory: StreamManifestDirectory, number: int, data: bytes) -> None:
        is_first = not writing.is_set()
        writing.set()
        if is_first:
            assert stopped.wait(LIMIT_S)
            loaded.wait(2)  # until then, a restarted query that does not wait for this write has loaded
        write(directory, number, data)
        written.set()

    def load_before_write(directory: StreamManifestDirectory) -> tuple[int, list[Row]]:
        found = load(directory)
        if writing.is_set():
            loaded.set()
            assert written.wait(LIMIT_S)
        return found

    monkeypatch.setattr(StreamManifestDirectory, "write", write_late)
    monkeypatch.setattr(StreamManifestDirectory, "load", load_before_write)
    query = stream.start()
    eventually(Path(stream.checkpoint, "raymq", stream.topic, "source.json").exists, "the starting positions")
    sent = send(orders, stream.topic, range(1))
    assert writing.wait(LIMIT_S)
    query.stop()
    sent += send(orders, stream.topic, range(1, 5))
    stopped.set()
    assert stream.drain() == [1, 4]
    assert stream.bodies() == sent


def test_old_manifests_are_removed_and_times_increase(
    orders: Orders, sink: Callable[[str], Sink], spark: SparkSession
) -> None:
    stream = sink("stream-clean")
    sent = send(orders, stream.topic, range(12))
    retained = spark.conf.get("spark.sql.streaming.minBatchesToRetain")
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", 3)
    try:
        stream.drain(startingOffsets="earliest", maxOffsetsPerTrigger=2)
        manifests = Path(stream.checkpoint, "raymq", stream.topic, "manifests")
        names = [f"{number:020d}.json" for number in range(3, 6)]
        eventually(lambda: sorted(each.name for each in manifests.glob("*.json")) == names, "removal")
    finally:
        spark.conf.set("spark.sql.streaming.minBatchesToRetain", retained)
    times = [(manifests / name).stat().st_mtime_ns for name in names]
    assert times == sorted(set(times))
    assert stream.bodies() == sent


def test_deleted_messages_end_the_query_or_are_skipped(orders: Orders, sink: Callable[[str], Sink]) -> None:
    stream = sink("stream-loss")
    sent = send(orders, stream.topic, range(20))
    assert sum(stream.drain(startingOffsets="earliest")) == 20
    with Admin(orders.nameservers) as admin:
        query = stream.start(fetchOffsetNumRetries=0)
        admin.delete_topic(stream.topic)
        with pytest.raises(Exception, match="StreamFailed: TopicNotFound"):
            query.awaitTermination()
        admin.create_topic(stream.topic, queues=2)
    with pytest.raises(Exception, match=rf"StreamFailed: DataLoss.*{stream.topic}/broker-a/0 \[0, 5\)"):
        stream.drain()
    query = stream.start(failOnDataLoss=False)
    manifests = Path(stream.checkpoint, "raymq", stream.topic, "manifests")
    eventually(lambda: (manifests / f"{3:020d}.json").exists(), "the new positions")
    sent += send(orders, stream.topic, range(20, 30))
    eventually(lambda: len(stream.bodies()) == 30, "messages after the loss")
    query.stop()
    assert stream.bodies() == sent


def test_query_that_failed_before_its_first_batch_resumes(
    orders: Orders, sink: Callable[[str], Sink]
) -> None:
    stream = sink("stream-failed-first")
    query = stream.start(fetchOffsetNumRetries=0)
    eventually(Path(stream.checkpoint, "raymq", stream.topic, "source.json").exists, "the starting positions")
    with Admin(orders.nameservers) as admin:
        admin.delete_topic(stream.topic)
        with pytest.raises(Exception, match="StreamFailed: TopicNotFound"):
            query.awaitTermination()
        admin.create_topic(stream.topic, queues=2)
    sent = send(orders, stream.topic, range(5))
    assert [rows for rows in stream.drain() if rows] == [5]  # the batch that failed may have been empty
    assert stream.bodies() == sent


def test_stopped_broker_ends_an_idle_query_with_remedy(spark: SparkSession, tmp_path: Path) -> None:
    running = ClusterThread(tmp_path / "stores", brokers=1)
    try:
        nameservers = running.cluster.nameserver_address
        with Admin(nameservers) as admin:
            admin.create_topic("stream-idle", queues=1)
        stream = Sink(spark, nameservers, "stream-idle", tmp_path)
        query = stream.start(fetchOffsetNumRetries=1, fetchOffsetRetryIntervalMs=1)
        eventually(Path(stream.checkpoint, "raymq", stream.topic, "source.json").exists, "the positions")
    finally:
        running.stop()
    with pytest.raises(Exception, match="StreamFailed: ") as failed:
        query.awaitTermination()
    assert "Check topic stream-idle and its brokers, then start the query again" in str(failed.value)


def test_restored_store_ends_the_query_or_is_read_from_the_copy_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The restored store has more new messages than were lost, so that all offsets of the stream exist."""
    broker = RestoredBroker(tmp_path)
    try:
        broker.send(*range(5))
        broker.copy()
        broker.send(*range(5, 10))
        stream = Sink(spark, broker.nameservers, TOPIC, tmp_path)
        assert sum(stream.drain(startingOffsets="earliest")) == 10
        broker.restore()
        broker.send(*range(20, 30))
        with pytest.raises(Exception, match=r"StreamFailed: DataLoss.*broker-a/0 \[5, 10\): the log of"):
            stream.drain()
        assert [rows for rows in stream.drain(failOnDataLoss=False) if rows] == [10]
        assert stream.bodies() == [f"{number:06d}" for number in (*range(10), *range(20, 30))]
        broker.running.stop()
        broker.start()
        broker.send(30)
        assert sum(stream.drain()) == 1
    finally:
        broker.running.stop()


def test_checkpoint_of_another_topic_cluster_or_query_is_refused(
    orders: Orders, sink: Callable[[str], Sink], spark: SparkSession, tmp_path: Path
) -> None:
    stream = sink("stream-owner")
    send(orders, stream.topic, range(4))
    stream.drain(startingOffsets="earliest")
    options: dict[str, Any] = {"checkpointLocation": stream.checkpoint, "nameservers": orders.nameservers}
    with Admin(orders.nameservers) as admin:
        admin.create_topic("stream-other", queues=1)
    with pytest.raises(CheckpointMismatch, match=f"reads {stream.topic}, not stream-other"):
        read_stream(spark, "stream-other", **options)
    other = read_stream(spark, stream.topic, **options).writeStream.format("noop")
    with pytest.raises(Exception, match="CheckpointMismatch: the stream with checkpoint"):
        other.option("checkpointLocation", str(tmp_path / "elsewhere")).start().awaitTermination()
    new = read_stream(spark, stream.topic, **{**options, "checkpointLocation": str(tmp_path / "new")})
    with pytest.raises(Exception, match="give read_stream and writeStream the same"):
        new.writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "elsewhere2")
        ).start().awaitTermination()
    source = Path(stream.checkpoint, "raymq", stream.topic, "source.json")
    source.write_text(json.dumps({**json.loads(source.read_text()), "cluster": "OtherCluster"}))
    with pytest.raises(CheckpointMismatch, match="of cluster OtherCluster, not of cluster DefaultCluster"):
        read_stream(spark, stream.topic, **options)


@pytest.mark.extended
@pytest.mark.parametrize(
    "step",
    [
        "check point/raymq/{topic}/manifests/{:020d}.json",
        "check point/offsets/{}",
        "output/_spark_metadata/{}",
    ],
)
def test_killed_driver_loses_and_repeats_no_message(
    orders: Orders, sink: Callable[[str], Sink], tmp_path: Path, step: str
) -> None:
    """Kill the driver between a manifest and its batch, during the batch, and after the sink's commit."""
    stream = sink("stream-killed")
    sent = send(orders, stream.topic, range(40))  # two batches
    file = step.format(1, topic=stream.topic)
    command = [sys.executable, "-m", "tests.jobs.spark.stream.stream_driver"]
    killed = subprocess.run(
        [*command, orders.nameservers, stream.topic, str(tmp_path), file], check=False, timeout=2 * LIMIT_S
    )
    assert killed.returncode == -signal.SIGKILL
    commits = Path(stream.checkpoint, "commits")
    # The kill may be late. Spark writes nothing after this entry, so this is the state before it.
    for name in ("1", ".1.crc"):
        (commits / name).unlink(missing_ok=True)
    stream.drain(maxOffsetsPerTrigger=20)
    # If the driver is killed before it has planned batch 0, Spark reads both manifests in batch 0.
    assert (commits / "1").exists() or "manifests" in step
    assert stream.bodies() == sent


def test_invalid_options_and_unknown_topic_are_refused_before_start(
    orders: Orders, spark: SparkSession, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"checkpointLocation": str(tmp_path), "nameservers": orders.nameservers}
    with pytest.raises(OptionInvalid, match="maxOffsetsPerTrigger=0"):
        read_stream(spark, "orders", maxOffsetsPerTrigger=0, **options)
    with pytest.raises(OffsetsInvalid, match="orders/broker-a/9"):
        read_stream(spark, "orders", startingOffsets={"orders": {"broker-a": {9: 1}}}, **options)
    with pytest.raises(OptionInvalid, match="did you mean startingOffsets"):
        read_stream(spark, "orders", startingOffset="latest", **options)
    with pytest.raises(ClientError, match="stream-unknown"):
        read_stream(spark, "stream-unknown", **options)
    assert not list(tmp_path.iterdir())
