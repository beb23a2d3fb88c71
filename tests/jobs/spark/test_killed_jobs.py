"""Executors and brokers that are killed while a job runs: each message and row is there exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest

from cluster.client import Admin, Producer
from jobs import read_queue, write_queue
from jobs.job_errors import CommitFailed, WriteFailed
from jobs.writing.commit import commit, prepare_topic
from jobs.writing.partition_writer import PartitionWriter
from jobs.writing.write_job import WriteColumns, new_job
from store.common.clock import SystemClock
from tests.eventually import LIMIT_S, eventually
from tests.faults.standalone_process import REPO, StandaloneProcess
from tests.jobs.conftest import Orders
from tests.jobs.spark.cluster_driver import ROWS
from tests.jobs.spark.parquet_sink import Sink
from tests.jobs.spark.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.extended]

TOPIC = "killed"
MESSAGES = 2000
BODY_BYTES = 30_000
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    cluster = SparkCluster(tmp_path_factory.mktemp("spark"))
    yield cluster
    cluster.stop()


# ---- executors -------------------------------------------------------------------------------------------


def create(orders: Orders, name: str) -> str:
    topic = f"{name}-{uuid4().hex[:8]}"  # a repeated test needs a new topic
    with Admin(orders.nameservers) as admin:
        admin.create_topic(topic, queues=2)
    return topic


def run_on_cluster(job: str, cluster: SparkCluster, orders: Orders, topic: str, directory: Path) -> None:
    arguments = [job, cluster.master, orders.nameservers, topic, str(directory)]
    command = [sys.executable, "-m", "tests.jobs.spark.cluster_driver", *arguments]
    subprocess.run(command, cwd=REPO, check=True, timeout=4 * LIMIT_S)


def test_executor_killed_in_a_batch_loses_and_repeats_no_message(
    spark: SparkSession, spark_cluster: SparkCluster, orders: Orders, tmp_path: Path
) -> None:
    topic = create(orders, "killed-executor")
    bodies = [f"{number:03d}" for number in range(60)]  # three batches
    with Producer(orders.nameservers) as producer:
        for body in bodies:
            producer.send(topic, body)
    run_on_cluster("stream", spark_cluster, orders, topic, tmp_path)
    assert (tmp_path / "killed").exists()
    sink = Sink(spark, orders.nameservers, topic, tmp_path)
    assert sink.batches() == 3
    assert sink.bodies() == bodies


@pytest.mark.parametrize(("job", "marker"), [("retried-write", "killed"), ("speculative-write", "attempt-1")])
def test_committed_read_returns_rows_of_two_attempts_once(
    spark: SparkSession, spark_cluster: SparkCluster, orders: Orders, tmp_path: Path, job: str, marker: str
) -> None:
    topic = create(orders, job)
    run_on_cluster(job, spark_cluster, orders, topic, tmp_path)
    assert (tmp_path / marker).exists()
    columns = ["body", "uniqKey"]
    stored, committed = (
        read_queue(spark, topic, nameservers=orders.nameservers, columns=columns, committed=each)
        for each in (False, True)
    )
    assert sorted(int(row["body"]) for row in committed.collect()) == list(range(ROWS, 2 * ROWS))
    assert stored.count() > stored.distinct().count() == ROWS  # stored twice, with one UNIQ_KEY


# ---- brokers ---------------------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[StandaloneProcess]:
    root = tmp_path / "stores"
    root.mkdir()
    process = StandaloneProcess(root)
    with Admin(process.nameserver) as admin:
        admin.create_topic(TOPIC, queues=2)
    yield process
    process.stop()


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Let Spark pass rows on in many batches: otherwise it reads all rows before a test function gets one."""
    spark.conf.set(BATCH_ROWS, 50)
    yield
    spark.conf.unset(BATCH_ROWS)


def kill_broker(
    broker: tuple[str, int], directory: Path, passed: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Pass batches on; after `passed` ones, kill the broker as soon as its topic has messages.

    If there is a file "waits", wait for a restart of the broker. `broker` is the address of its nameserver
    and its process id.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    (directory / f"attempt-{task.attemptNumber()}").touch()
    nameserver, pid = broker
    for number, batch in enumerate(batches, 1):
        yield batch
        if number == passed and not (directory / "killed").exists():
            with Admin(nameserver) as admin:
                eventually(lambda: sum(admin.end_offsets(TOPIC).values()) > 0, "stored rows")
            os.kill(pid, signal.SIGKILL)
            (directory / "killed").touch()
            if (directory / "waits").exists():
                eventually((directory / "restarted").exists, "a restart of the broker")


def restart_killed(broker: StandaloneProcess, directory: Path) -> None:
    eventually((directory / "killed").exists, "the kill")
    broker.kill()
    broker.start()
    (directory / "restarted").touch()


def send_large(broker: StandaloneProcess) -> list[str]:
    """Send more than fits into the buffers between the broker and the sink. Return the bodies, sorted."""
    bodies = [f"{number:06d}{os.urandom(BODY_BYTES // 2).hex()}" for number in range(MESSAGES)]
    with Producer(broker.nameserver) as producer:
        for sent in [producer.send_async(TOPIC, body) for body in bodies]:
            sent.result()
    return bodies


def start_and_kill(sink: Sink, broker: StandaloneProcess, directory: Path) -> StreamingQuery:
    killing = partial(kill_broker, (broker.nameserver, broker.process.pid), directory, 1)
    trigger, options = {"availableNow": True}, {"startingOffsets": "earliest", "minPartitions": 1}
    return sink.start(trigger, killing, mapFiles=False, **options)


@pytest.mark.usefixtures("small_batches")
def test_broker_restarted_in_a_batch_loses_and_repeats_no_message(
    spark: SparkSession, broker: StandaloneProcess, tmp_path: Path
) -> None:
    bodies = send_large(broker)
    sink = Sink(spark, broker.nameserver, TOPIC, tmp_path)
    (tmp_path / "waits").touch()
    query = start_and_kill(sink, broker, tmp_path)
    restart_killed(broker, tmp_path)
    assert query.awaitTermination(int(LIMIT_S))
    assert (tmp_path / "attempt-1").exists()
    assert sink.batches() == 1
    assert sink.bodies() == bodies


@pytest.mark.usefixtures("small_batches")
def test_dead_broker_ends_the_query_and_a_restart_resumes_it(
    spark: SparkSession, broker: StandaloneProcess, tmp_path: Path
) -> None:
    bodies = send_large(broker)
    sink = Sink(spark, broker.nameserver, TOPIC, tmp_path)
    query = start_and_kill(sink, broker, tmp_path)
    with pytest.raises(Exception, match=rf"FetchFailed: {TOPIC}/broker-a/\d \[\d+, \d+\): ") as failed:
        query.awaitTermination()
    assert "start broker broker-a and run the job again" in str(failed.value)
    assert sink.bodies() == []
    restart_killed(broker, tmp_path)
    sink.drain(mapFiles=False)
    assert sink.bodies() == bodies


@pytest.mark.usefixtures("small_batches")
def test_write_continues_after_a_restart_of_the_broker(
    spark: SparkSession, broker: StandaloneProcess, tmp_path: Path
) -> None:
    (tmp_path / "waits").touch()
    killing = partial(kill_broker, (broker.nameserver, broker.process.pid), tmp_path, 20)
    rows = spark.range(0, ROWS, 1, 1).selectExpr("rpad(id, 1000, ' ') AS body")
    rows = rows.mapInArrow(killing, "body string")
    with ThreadPoolExecutor(1) as pool:
        restarted = pool.submit(restart_killed, broker, tmp_path)
        receipt = write_queue(rows, TOPIC, nameservers=broker.nameserver, buffer_bytes=1)
        restarted.result()
    assert receipt.rows == ROWS
    committed = read_queue(spark, TOPIC, nameservers=broker.nameserver, columns=["body"], committed=True)
    assert sorted(int(row["body"]) for row in committed.collect()) == list(range(ROWS))


def test_commit_waits_for_a_restart_of_the_broker(spark: SparkSession, broker: StandaloneProcess) -> None:
    job = new_job(TOPIC, broker.nameserver, WriteColumns("body"), 1, SystemClock().wall_ms())
    prepare_topic(job, "append")
    receipt = PartitionWriter(job, 0).write([pa.table({"body": ["1", "2"]})])
    broker.kill()
    with ThreadPoolExecutor(1) as pool:
        restarted = pool.submit(broker.start)
        assert commit(job, [receipt]).rows == 2
        restarted.result()
    assert read_queue(spark, TOPIC, nameservers=broker.nameserver, committed=True).count() == 2


def test_dead_broker_fails_the_write_and_no_row_is_visible(
    spark: SparkSession, broker: StandaloneProcess
) -> None:
    """The error appears after `delivery_timeout_ms`, a minute."""
    job = new_job(TOPIC, broker.nameserver, WriteColumns("body"), 1, SystemClock().wall_ms())
    prepare_topic(job, "append")
    first = PartitionWriter(job, 0).write([pa.table({"body": ["1"]})])

    def rows() -> Iterator[pa.Table]:
        yield pa.table({"body": ["2", "3"]})
        broker.kill()
        yield pa.table({"body": ["4"]})
        yield pa.table({"body": ["5"]})

    with pytest.raises(WriteFailed, match=rf"topic {TOPIC}: rows \[\d, \d\) of partition 1, .* write again"):
        PartitionWriter(job, 1).write(rows())
    with pytest.raises(CommitFailed, match=rf"topic {TOPIC}: all 1 rows .* Read the topic with"):
        commit(job, [first])
    broker.start()
    found = {
        committed: read_queue(spark, TOPIC, nameservers=broker.nameserver, committed=committed).count()
        for committed in (False, True)
    }
    assert found[False] > 0
    assert found[True] == 0
