"""`reshard_topic`: copy a topic into a new topic with another number of queues, in order for each key."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql.functions import coalesce, col, count, lit
from pyspark.sql.functions import max as greatest

from cluster.client import Admin
from cluster.client.config import Nameservers
from cluster.client.errors import TopicNotFound
from jobs.job_errors import KeyNotFound, OptionInvalid, TopicNotEmpty
from jobs.option_values import I32_MAX, as_choice, as_integer
from jobs.reading.describe import describe_topic
from jobs.reindex.message_key import MessageKey
from jobs.spark.read_queue import read_queue
from jobs.spark.write_queue import write_queue
from jobs.writing.commit import WriteReceipt

SHARD = "shard"
_COLUMNS = ("brokerName", "commitLogOffset", "storeTimestamp")
_CONTENT = ("body", "keys", "tags", "properties")
_MISSING = ("fail", "spread")


def reshard_topic(
    spark: SparkSession,
    topic: str,
    target: str,
    queues: int,
    *,
    property: str | None = None,  # noqa: A002 - the name of the option
    json_field: str | None = None,
    missing: Literal["fail", "spread"] = "fail",
    nameservers: Nameservers | None = None,
    committed: bool = False,
) -> WriteReceipt:
    """Copy the messages of `topic` into the new topic `target`, which has another number of queues.

    All messages with equal keys get into one queue of `target`, in the order in which they were stored. This
    is the order of their queue, or for messages of different queues or brokers that of their store times.
    Bodies, keys, tags and user properties are kept; born times are not. A body that cannot be decompressed is
    copied as it is stored. The job is committed as by
    `write_queue`: read `target` with `committed=True`, because a task that Spark retries stores its rows
    again.

    Args:
        spark: The session.
        topic: The topic to copy. The messages that are confirmed when this function is called are copied.
        target: The new topic. It is created with `queues` queues on each broker; it may exist if it is empty.
        queues: Number of queues on each broker.
        property: Name of the property that is the key: KEYS, as a whole, TAGS, UNIQ_KEY or a user property.
        json_field: Path of the field in JSON bodies that is the key, such as `order.id` or `$.items[0].id`.
        missing: What to do if messages have no key: "fail", or "spread" them over the queues in any order.
        nameservers: "host:port;host:port", a list, or None for the value of the environment or the default.
        committed: Skip messages of `topic` that `write_queue` did not commit.

    Raises:
        OptionInvalid: An argument is invalid.
        KeyNotFound: Messages have no key, and `missing` is "fail". Nothing is created.
        TopicNotEmpty: `target` contains messages.
        WriteFailed: A task failed; the rows that it stored are not committed.
        CommitFailed: All rows are stored, but the manifest may not be.
        ClientError: The topic does not exist, or a broker cannot be reached or rejects the new topic.
    """
    wanted = MessageKey(property, json_field)
    _check_arguments(topic, target, queues, missing)
    rows = read_queue(
        spark, topic, nameservers=nameservers, committed=committed, columns=[*_COLUMNS, *_CONTENT]
    ).withColumn(SHARD, wanted.column())
    _check(rows, f"topic {topic}", wanted, missing)
    _create(nameservers, target, queues)
    return write_queue(
        _in_order(rows, max(spark.sparkContext.defaultParallelism, 1)),
        target,
        nameservers=nameservers,
        key="keys",
        tag="tags",
        sharding_key=SHARD,
        properties="properties",
        mode="errorifexists",
    )


def _check_arguments(topic: str, target: str, queues: int, missing: str) -> None:
    as_choice("missing", missing, _MISSING)
    as_integer("queues", queues, 1, I32_MAX)
    if topic == target:
        raise OptionInvalid(f"topic and target are both {topic}: give the new topic another name")


def _check(rows: DataFrame, topic: str, wanted: MessageKey, missing: str) -> None:
    """Raise KeyNotFound if messages of `topic` have no key by which their order can be kept."""
    counts = rows.agg(count(lit(1)), count(SHARD)).collect()[0]
    messages, with_key = (int(each) for each in counts)
    if with_key < messages and missing.lower() == "fail":
        raise KeyNotFound(
            f"{messages - with_key:,} of {messages:,} messages of {topic} have no {wanted}: use another"
            " key, or missing='spread' to distribute these messages over all queues in any order"
        )


def _in_order(rows: DataFrame, partitions: int) -> DataFrame:
    """Collect the messages of each key in one partition, in the order in which they were stored.

    Messages of one broker are ordered by their position in its log. A clock that was set back does not change
    this order: a message counts as stored no earlier than the messages of its key before it in the log.
    """
    # Messages without a key get a value of their own, by which they are distributed.
    shard = coalesce(col(SHARD), col("commitLogOffset").cast("string"))
    before = Window.partitionBy(SHARD, "brokerName").orderBy("commitLogOffset")
    return (
        rows.withColumn(SHARD, shard)
        .repartition(partitions, SHARD)
        .withColumn("storeTimestamp", greatest("storeTimestamp").over(before))
        .sortWithinPartitions("storeTimestamp", "brokerName", "commitLogOffset")
    )


def _create(nameservers: Nameservers | None, target: str, queues: int) -> None:
    """Create the topic `target`. Raises TopicNotEmpty if it has messages, and ClientError."""
    try:
        states = describe_topic(nameservers, target)
    except TopicNotFound:
        states = []
    stored = sum(state.max_offset for state in states)
    if stored:
        raise TopicNotEmpty(f"topic {target} had {stored:,} messages already: give a new or an empty topic")
    with Admin(nameservers) as admin:
        admin.create_topic(target, queues=queues)
