"""Reads that start at the offsets of a consumer group, and `commit_read`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from cluster.client import Admin, ClientError, MessageQueue, Producer, PullConsumer
from jobs import commit_read, read_queue, read_stream
from jobs.job_errors import CommitRefused, DataLoss, OffsetsInvalid
from store.message.group_config import SubscriptionGroupConfig
from tests.eventually import LIMIT_S, eventually
from tests.jobs.conftest import Orders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Billing:
    """A topic with one queue on each of two brokers, and a consumer group that has not consumed it."""

    def __init__(self, orders: Orders, admin: Admin) -> None:
        self.nameservers = orders.nameservers
        self.admin = admin
        name = uuid4().hex[:8]
        self.topic, self.group = f"billed-{name}", f"billing-{name}"
        admin.create_topic(self.topic, queues=1)
        admin.put_group(SubscriptionGroupConfig(self.group))
        self.queues = [MessageQueue(self.topic, broker, 0) for broker in ("broker-a", "broker-b")]

    def send(self, *numbers: int) -> None:
        """Send a message with each number to each queue."""
        with Producer(self.nameservers) as producer:
            for queue in self.queues:
                producer.send_many(self.topic, [b"%d" % number for number in numbers], queue=queue)

    def read(self, spark: SparkSession, **options: Any) -> DataFrame:
        options = {"startingOffsets": f"group:{self.group}", "columns": ["body"], **options}
        return read_queue(spark, self.topic, nameservers=self.nameservers, **options)

    def committed(self) -> list[int | None]:
        found = self.admin.committed_offsets(self.group, self.topic)
        return [found[queue] for queue in self.queues]


@pytest.fixture
def billing(orders: Orders) -> Any:
    with Admin(orders.nameservers) as admin:
        yield Billing(orders, admin)


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row["body"]) for row in frame.collect())


def test_each_read_continues_at_the_last_commit(spark: SparkSession, billing: Billing) -> None:
    billing.send(1, 2)
    first = billing.read(spark)
    billing.send(3)
    assert numbers(first) == numbers(billing.read(spark, endingOffsets=2)) == [1, 1, 2, 2]
    assert billing.committed() == [None, None]
    assert commit_read(first) == dict.fromkeys(billing.queues, 2)
    assert billing.committed() == [2, 2]
    second = billing.read(spark)
    assert numbers(second) == [3, 3]
    commit_read(second)
    nothing = billing.read(spark)
    assert numbers(nothing) == []
    assert commit_read(nothing) == {}
    assert billing.committed() == [3, 3]


def test_commit_never_moves_a_group_backwards(spark: SparkSession, billing: Billing) -> None:
    billing.send(1, 2, 3, 4)
    earlier = billing.read(spark, endingOffsets=2)
    billing.admin.commit_offsets(billing.group, {billing.queues[0]: 4})
    assert commit_read(earlier) == {billing.queues[0]: 4, billing.queues[1]: 2}
    assert billing.committed() == [4, 2]


def test_commit_is_refused_while_the_group_has_members(spark: SparkSession, billing: Billing) -> None:
    billing.send(1)
    frame = billing.read(spark)
    with PullConsumer(billing.nameservers, billing.group) as consumer:
        consumer.subscribe(billing.topic)
        eventually(lambda: billing.admin.group_members(billing.group), "a live member")
        with pytest.raises(CommitRefused, match=f"group {billing.group} has 1 live members .* stop them"):
            commit_read(frame)
        assert billing.committed() == [None, None]
    eventually(lambda: not billing.admin.group_members(billing.group), "no live member")
    commit_read(frame)
    assert billing.committed() == [1, 1]


def test_commit_counts_after_consumers_and_after_a_reset(spark: SparkSession, billing: Billing) -> None:
    """Plain commits are ignored in both cases: the queues have generations, or a pending reset."""
    billing.send(1, 2)
    with PullConsumer(billing.nameservers, billing.group) as consumer:
        consumer.subscribe(billing.topic)
        received = 0
        while received < 4:
            received += len(consumer.poll(timeout_ms=1000))
        consumer.commit()
    eventually(lambda: not billing.admin.group_members(billing.group), "no live member")
    assert billing.committed() == [2, 2]
    billing.send(3)
    frame = billing.read(spark)
    assert numbers(frame) == [3, 3]
    assert commit_read(frame) == dict.fromkeys(billing.queues, 3)
    billing.admin.reset_offsets(billing.group, billing.topic, "earliest")
    again = billing.read(spark)
    assert numbers(again) == [1, 1, 2, 2, 3, 3]
    commit_read(again)
    assert billing.committed() == [3, 3]
    billing.send(4)
    with PullConsumer(billing.nameservers, billing.group) as consumer:
        consumer.subscribe(billing.topic)
        bodies: list[bytes] = []
        while len(bodies) < 2:
            bodies += [message.body for message in consumer.poll(timeout_ms=1000)]
    assert bodies == [b"4", b"4"]


def test_offsets_of_the_group_that_do_not_exist_are_data_loss(spark: SparkSession, billing: Billing) -> None:
    billing.send(1)
    billing.admin.commit_offsets(billing.group, {billing.queues[0]: 7})
    with pytest.raises(
        DataLoss, match=rf"{billing.topic}/broker-a/0 \[1, 7\): after the end of the queue, 1"
    ):
        billing.read(spark)
    assert numbers(billing.read(spark, failOnDataLoss=False)) == [1]


def test_commits_without_a_group_are_refused(spark: SparkSession, billing: Billing) -> None:
    billing.send(1)
    for frame in (billing.read(spark, startingOffsets="earliest"), billing.read(spark).select("body")):
        with pytest.raises(
            CommitRefused, match="this DataFrame is not the result of a read from the offsets"
        ):
            commit_read(frame)
    with pytest.raises(CommitRefused, match="committed=True skipped messages"):
        commit_read(billing.read(spark, committed=True))
    with pytest.raises(OffsetsInvalid, match="raymq group create unknown-group"):
        billing.read(spark, startingOffsets="group:unknown-group")
    assert billing.committed() == [None, None]


def test_stream_starts_at_the_offsets_of_a_group(
    spark: SparkSession, billing: Billing, tmp_path: Path
) -> None:
    billing.send(1, 2, 3)
    billing.admin.commit_offsets(billing.group, {billing.queues[0]: 2})
    checkpoint = str(tmp_path / "checkpoint")
    options: dict[str, Any] = {"nameservers": billing.nameservers, "columns": ["body"]}
    frame = read_stream(
        spark,
        billing.topic,
        checkpointLocation=checkpoint,
        startingOffsets=f"group:{billing.group}",
        **options,
    )
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "output"))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(int(LIMIT_S))
    assert numbers(spark.read.schema("body binary").parquet(str(tmp_path / "output"))) == [1, 2, 3, 3]
    with pytest.raises(OffsetsInvalid, match="does not exist"):
        read_stream(
            spark, billing.topic, checkpointLocation=f"{checkpoint}-2", startingOffsets="group:x", **options
        )
    with pytest.raises((OffsetsInvalid, ClientError)):
        billing.read(spark, startingOffsets="group:x y")
