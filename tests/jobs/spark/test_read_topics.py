"""Reads of several topics, by list and by pattern."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from cluster.client import Admin, ClientError, Producer
from jobs import read_queue, read_stream
from jobs.job_errors import OffsetsInvalid, OptionInvalid
from jobs.reading.options.topics import TopicNames
from tests.eventually import LIMIT_S
from tests.jobs.conftest import Orders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PREFIX = "several"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def names(orders: Orders) -> list[str]:
    """Return two topics whose names match `PREFIX-.`, and one whose name only begins so."""
    topics = [f"{PREFIX}-a", f"{PREFIX}-b", f"{PREFIX}-long"]
    with Admin(orders.nameservers) as admin, Producer(orders.nameservers) as producer:
        for number, topic in enumerate(topics):
            admin.create_topic(topic, queues=2)
            for message in range(10 * (number + 1)):
                producer.send(topic, b"%d" % message)
    return topics


def counts(frame: DataFrame) -> dict[str, int]:
    return {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}


@pytest.mark.spark
def test_list_and_pattern_read_several_topics(spark: SparkSession, orders: Orders, names: list[str]) -> None:
    def read(**options: Any) -> dict[str, int]:
        return counts(read_queue(spark, nameservers=orders.nameservers, columns=["topic"], **options))

    assert read(topics=names[1:]) == {names[1]: 20, names[2]: 30}
    assert read(topicPattern=f"{PREFIX}-.") == {names[0]: 10, names[1]: 20}
    assert read(topicPattern=f"{PREFIX}-.*", committed=True) == {names[0]: 10, names[1]: 20, names[2]: 30}
    ending = {names[0]: {broker: {0: 0, 1: 0} for broker in ("broker-a", "broker-b")}}
    assert read(topics=names[:2], endingOffsets=ending) == {names[1]: 20}
    with pytest.raises(OffsetsInvalid, match=f"{names[2]}/broker-a/0"):
        read(topics=names[:2], startingOffsets={names[2]: {"broker-a": {0: 1}}})


@pytest.mark.spark
def test_stream_reads_topics_that_match_later(
    spark: SparkSession, orders: Orders, names: list[str], tmp_path: Path
) -> None:
    prefix = f"later-{uuid4().hex[:8]}"
    added = [f"{prefix}-1", f"{prefix}-2"]

    def drain() -> dict[str, int]:
        frame = read_stream(
            spark,
            topicPattern=f"{prefix}-.",
            checkpointLocation=str(tmp_path / "checkpoint"),
            nameservers=orders.nameservers,
            startingOffsets="earliest",
            columns=["topic", "body"],
        )
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "output"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(int(LIMIT_S))
        return counts(spark.read.parquet(str(tmp_path / "output")))

    with Admin(orders.nameservers) as admin, Producer(orders.nameservers) as producer:
        for count, topic in enumerate(added, 1):
            admin.create_topic(topic, queues=1)
            for _ in range(count):
                producer.send(topic, b"x")
            assert drain() == {name: number for number, name in enumerate(added[:count], 1)}


def test_pattern_matches_full_names_of_ordinary_topics(orders: Orders, names: list[str]) -> None:
    with Admin(orders.nameservers) as admin:
        assert TopicNames(pattern=f"{PREFIX}-.").find(admin) == tuple(names[:2])
        found = set(TopicNames(pattern=".*").find(admin))
        assert set(names) <= found
        assert not [name for name in found if name.startswith(("%", "rmq_sys_", "RMQ_SYS", "SCHEDULE_TOPIC"))]
        registered = {"broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC"}
        assert found.isdisjoint({*registered, "TBW102", "RAYMQ_WRITE_MANIFESTS"})
        with pytest.raises(OptionInvalid, match="no topic matches the pattern 'nothing' in full"):
            TopicNames(pattern="nothing").find(admin)


@pytest.mark.spark
def test_missing_topic_of_a_list_fails_the_read(
    spark: SparkSession, orders: Orders, names: list[str]
) -> None:
    with pytest.raises(ClientError, match="unknown-topic"):
        read_queue(spark, topics=[*names, "unknown-topic"], nameservers=orders.nameservers)
    with pytest.raises(OptionInvalid, match="give one of them"):
        read_queue(spark, nameservers=orders.nameservers)
