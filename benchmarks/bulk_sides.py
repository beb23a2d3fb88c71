"""RayMQ and Kafka as sources and sinks of Spark and Ray Data, with one interface for both."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import ray.data
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from benchmarks.kafka import Kafka
from cluster.client import Admin
from jobs import read_dataset, read_queue, read_stream, write_queue
from jobs.lake.catalogs import lake_settings, open_catalog
from jobs.lake.lake_table import LakeTable
from jobs.lake.round import write_round
from jobs.reading.describe import describe_topic


class Side(Protocol):
    """A message queue as a source and sink. Bodies are in column `body`, store times in `stored`."""

    def create(self, topic: str) -> None:
        """Create `topic`."""
        ...

    def write(self, rows: DataFrame, topic: str) -> None:
        """Write the column `body` of `rows` to `topic`."""
        ...

    def bodies(self, topic: str) -> DataFrame:
        """Return the bodies of all messages of `topic`."""
        ...

    def all_columns(self, topic: str) -> DataFrame:
        """Return all columns of all messages of `topic`."""
        ...

    def positions(self, topic: str) -> DataFrame:
        """Return queue offset and store time of all messages of `topic`."""
        ...

    def stream(self, topic: str, checkpoint: str) -> DataFrame:
        """Return body and store time of the messages of `topic` as a stream that starts at its end."""
        ...

    def dataset(self, topic: str) -> ray.data.Dataset:
        """Return the bodies of all messages of `topic` as a Ray Data dataset, in column `body`."""
        ...

    def fill_table(self, topic: str, warehouse: Path) -> int:
        """Write all messages of `topic` to a new Iceberg table below `warehouse`. Return its rows."""
        ...


class RayMQSide:
    """RayMQ, with its own readers and writer."""

    def __init__(self, spark: SparkSession, nameservers: str, queues: int) -> None:
        """Store the arguments; new topics have `queues` queues."""
        self._spark = spark
        self._nameservers = nameservers
        self._queues = queues

    def create(self, topic: str) -> None:
        """Create `topic`."""
        with Admin(self._nameservers) as admin:
            admin.create_topic(topic, queues=self._queues)

    def write(self, rows: DataFrame, topic: str) -> None:
        """Write with `write_queue`."""
        write_queue(rows, topic, nameservers=self._nameservers)

    def bodies(self, topic: str) -> DataFrame:
        """Read column body."""
        return read_queue(self._spark, topic, nameservers=self._nameservers, columns=["body"])

    def all_columns(self, topic: str) -> DataFrame:
        """Read all columns."""
        return read_queue(self._spark, topic, nameservers=self._nameservers)

    def positions(self, topic: str) -> DataFrame:
        """Read columns queueOffset and storeTimestamp."""
        columns = ["queueOffset", "storeTimestamp"]
        return read_queue(self._spark, topic, nameservers=self._nameservers, columns=columns)

    def stream(self, topic: str, checkpoint: str) -> DataFrame:
        """Read with `read_stream`."""
        found = read_stream(
            self._spark,
            topic,
            checkpointLocation=checkpoint,
            nameservers=self._nameservers,
            columns=["body", "storeTimestamp"],
        )
        return found.select("body", col("storeTimestamp").alias("stored"))

    def dataset(self, topic: str) -> ray.data.Dataset:
        """Read with `read_dataset`."""
        return read_dataset(topic, nameservers=self._nameservers, columns=["body"])

    def fill_table(self, topic: str, warehouse: Path) -> int:
        """Write in rounds until there is nothing left, as the process `lakes:` does."""
        catalog = open_catalog(lake_settings(str(warehouse), warehouse))
        table = LakeTable.create(catalog, "raymq", topic)
        rows, remaining = 0, 1
        while remaining:
            written = write_round(table, lambda: describe_topic(self._nameservers, topic))
            rows, remaining = rows + written.rows, written.remaining
        return rows


class KafkaSide:
    """Kafka, with Spark's Kafka source and sink, and `ray.data.read_kafka`."""

    def __init__(self, spark: SparkSession, kafka: Kafka) -> None:
        self._spark = spark
        self._servers = kafka.bootstrap_servers
        self._kafka = kafka

    def create(self, topic: str) -> None:
        """Create `topic`."""
        self._kafka.create_topic(topic)

    def write(self, rows: DataFrame, topic: str) -> None:
        """Write with Spark's Kafka sink."""
        options = {"kafka.bootstrap.servers": self._servers, "topic": topic}
        rows.select(col("body").alias("value")).write.format("kafka").options(**options).save()

    def bodies(self, topic: str) -> DataFrame:
        """Read column value."""
        return self._batch(topic).select(col("value").alias("body"))

    def all_columns(self, topic: str) -> DataFrame:
        """Read all columns, headers included."""
        return self._batch(topic)

    def positions(self, topic: str) -> DataFrame:
        """Read columns offset and timestamp."""
        return self._batch(topic).select("offset", "timestamp")

    def stream(self, topic: str, checkpoint: str) -> DataFrame:
        """Read with Spark's Kafka source; `checkpoint` is given to the query, not to the source."""
        options = {"kafka.bootstrap.servers": self._servers, "subscribe": topic, "startingOffsets": "latest"}
        found = self._spark.readStream.format("kafka").options(**options).load()
        return found.select(col("value").alias("body"), col("timestamp").alias("stored"))

    def dataset(self, topic: str) -> ray.data.Dataset:
        """Read with `ray.data.read_kafka`."""
        read = ray.data.read_kafka(topic, bootstrap_servers=self._servers)
        return read.rename_columns({"value": "body"}).select_columns(["body"])

    def fill_table(self, topic: str, warehouse: Path) -> int:
        """Write with Spark Structured Streaming: all that there is, in batches, then end."""
        name = warehouse.name.replace("-", "_")
        catalog = f"spark.sql.catalog.{name}"
        for key, value in {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": str(warehouse),
        }.items():
            self._spark.conf.set(key, value)
        table = f"{name}.raymq.`{topic}`"
        self._spark.sql(
            f"create table {table} (queue int, offset bigint, store_time timestamp, key string,"
            " headers array<struct<key: string, value: binary>>, body binary)"
            " using iceberg partitioned by (days(store_time))"
        )
        options = {
            "kafka.bootstrap.servers": self._servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
        }
        rows = self._spark.readStream.format("kafka").options(**options).load()
        query = (
            rows.selectExpr(
                "partition as queue",
                "offset",
                "timestamp as store_time",
                "cast(key as string) as key",
                "headers",
                "value as body",
            )
            .writeStream.format("iceberg")
            .trigger(availableNow=True)
            .option("checkpointLocation", str(warehouse / "checkpoint"))
            .option("fanout-enabled", "true")
            .toTable(table)
        )
        query.awaitTermination()
        return int(self._spark.table(table).count())

    def _batch(self, topic: str) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self._servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
        }
        return self._spark.read.format("kafka").options(**options).load()


def has_confluent_kafka() -> bool:
    """Return True if confluent-kafka is installed, which `ray.data.read_kafka` needs."""
    return find_spec("confluent_kafka") is not None
