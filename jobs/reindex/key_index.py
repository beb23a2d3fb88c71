"""`index_keys`: an index of a topic over any property or JSON field, as Parquet files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyspark.errors import AnalysisException
from pyspark.sql import Observation, SparkSession
from pyspark.sql.functions import array_remove, col, count, explode, lit, split

from cluster.client.config import Nameservers
from jobs.job_errors import KeyNotFound, TargetExists
from jobs.option_values import as_choice, as_path, escaped_pattern
from jobs.reindex.message_key import MessageKey
from jobs.spark.read_queue import read_queue

KEYS = "KEYS"
_PLACE = ("topic", "brokerName", "queueId", "queueOffset", "commitLogOffset")
_MODES = ("errorifexists", "overwrite")


@dataclass(frozen=True)
class KeyIndex:
    """The result of `index_keys`.

    Attributes:
        path: The directory of the Parquet files.
        messages: Number of messages that were read.
        messages_with_key: Number of messages that have the property or field.
        entries: Number of rows of the index.
    """

    path: str
    messages: int
    messages_with_key: int
    entries: int


def index_keys(
    spark: SparkSession,
    topic: str,
    path: str | Path,
    *,
    property: str | None = None,  # noqa: A002 - the name of the option
    json_field: str | None = None,
    nameservers: Nameservers | None = None,
    mode: Literal["errorifexists", "overwrite"] = "errorifexists",
    committed: bool = False,
) -> KeyIndex:
    """Write an index of `topic` over a property or a JSON field into Parquet files below `path`.

    A row has the columns `key`, `topic`, `brokerName`, `queueId`, `queueOffset` and `commitLogOffset`. Equal
    keys are in the same file, and the rows of a file are sorted, so that a filter on `key` reads only a part
    of the files. The property KEYS has one row for each of its keys.

    Args:
        spark: The session.
        topic: The topic. The messages that are confirmed when this function is called are read.
        path: The directory of the index, on any file system that Spark can write.
        property: Name of the property: KEYS, TAGS, UNIQ_KEY or a user property.
        json_field: Path of a field in JSON bodies, such as `order.id` or `$.items[0].id`.
        nameservers: "host:port;host:port", a list, or None for the value of the environment or the default.
        mode: "errorifexists", or "overwrite" to replace an existing index.
        committed: Skip messages that `write_queue` did not commit.

    Raises:
        OptionInvalid: Not exactly one of `property` and `json_field` is given, or the mode is unknown.
        KeyNotFound: No message has the property or field; nothing is written.
        TargetExists: `path` exists and `mode` is "errorifexists"; nothing is changed.
        ClientError: The topic does not exist, or a broker cannot be reached.
    """
    wanted = MessageKey(property, json_field)
    directory, chosen = as_path("path", path), as_choice("mode", mode, _MODES)
    rows = read_queue(
        spark, topic, nameservers=nameservers, committed=committed, columns=[*_PLACE, wanted.needed]
    ).select(wanted.column().alias("key"), *_PLACE)
    if not rows.where("key IS NOT NULL").take(1):
        raise KeyNotFound(f"no message of topic {topic} has the {wanted}: nothing is written")
    seen = Observation()
    rows = rows.observe(seen, count(lit(1)).alias("messages"), count("key").alias("with_key"))
    found = rows.where("key IS NOT NULL")
    if property == KEYS:
        found = found.withColumn("key", explode(array_remove(split(col("key"), " "), "")))
    parts = max(spark.sparkContext.defaultParallelism, 1)
    ordered = found.repartition(parts, "key").sortWithinPartitions("key", "brokerName", "commitLogOffset")
    try:
        ordered.write.mode(chosen).parquet(directory)
    except AnalysisException as error:
        if "PATH_ALREADY_EXISTS" in str(error):
            raise TargetExists(f"{directory} exists: choose another path, or mode='overwrite'") from error
        raise
    counts = seen.get
    entries = spark.read.parquet(escaped_pattern(directory)).count()
    return KeyIndex(directory, counts["messages"], counts["with_key"], entries)
