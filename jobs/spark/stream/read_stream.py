"""`read_stream`: read a topic as a streaming DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from cluster.client import Admin
from cluster.client.config import ClientConfig
from jobs.option_values import as_path, escaped_pattern
from jobs.reading.describe import states_of
from jobs.reading.log_epochs import Epochs, gone_back
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.plan import ReadPlan, find_start, reader_of
from jobs.reading.schema import spark_schema
from jobs.reading.splits import QueueState
from jobs.reading.starting_offsets import Offsets
from jobs.spark.bodies.body_columns import BodyColumns, parse_body_columns
from jobs.spark.keywords import StreamKeywords, check_keywords, stream_options
from jobs.spark.stream.listener import listener_of
from jobs.spark.stream.manifest_directory import StreamManifestDirectory
from jobs.spark.stream.plan import Limits, Positions
from jobs.spark.stream.planner import Planner, PlanOptions
from jobs.spark.stream.reader import StreamManifestReader
from jobs.spark.stream.stream_errors import CheckpointMismatch
from jobs.spark.stream.stream_manifest import SCHEMA, encode_fault
from store.common.clock import SystemClock

RETAINED_BATCHES = "spark.sql.streaming.minBatchesToRetain"


def read_stream(
    spark: SparkSession,
    topic: str | None = None,
    *,
    checkpointLocation: str | Path,  # noqa: N803 - the name of Spark's own option
    **options: Unpack[StreamKeywords],
) -> DataFrame:
    """Read a topic as a streaming DataFrame with one row per message (`jobs.reading.schema`), for one query.

    The offset ranges of a batch are fixed before it starts, and a restarted query repeats them. Therefore a
    sink that ignores repeated batches, such as Parquet files, stores each message exactly once. Queues and
    brokers that are added while the query is running, and topics that match `topicPattern`, are read from
    their first message. Spark's triggers, including availableNow, are supported. The observed metrics
    `raymq_<topic>` in the query's progress contain the number of messages in the batch (`messages`) and after
    it (`lag`). With several topics the name is `raymq_<topic>+<topic>`, with a pattern `raymq_topics-<hash>`.

    `checkpointLocation`: the checkpoint of the query, as in `writeStream.option("checkpointLocation", …)`.
    `startingOffsets`: start of a new query: "latest", "earliest", "group:NAME", or offsets as in
    `read_queue`. Queues that are not listed start at their first offset. A restarted query ignores it and
    resumes from its checkpoint.
    `maxOffsetsPerTrigger`: maximum number of messages of a batch, distributed over the queues in proportion
    to their available messages (default: no limit).
    `minPartitions`: number of partitions of a batch (default: Spark's parallelism).
    `failOnDataLoss`: fail if messages were deleted before they were read, or lost after; if False, skip them.
    `topics`, `topicPattern`, `nameservers`, `startingTimestamp`, `startingOffsetsByTimestamp`,
    `startingOffsetsByTimestampStrategy`, `columns`, `tags`, `sql`, `schema`, `format`, `mode`, `avroSchema`,
    `mapFiles`: as in `read_queue`. `replica`: only "master".
    `lake="with_tail"` with `startingOffsets="earliest"` or an earlier time: begin in the tables of the topics
    and continue in the log without a gap. `warehouse`, `catalog`, `namespace`, `where`: as in `read_queue`.
    `pollIntervalMs`: interval of requests for the queues' end offsets while there are no new messages (100).
    `fetchOffsetNumRetries`, `fetchOffsetRetryIntervalMs`: retries of such a request (30, every 1,000 ms).

    Raises `CheckpointMismatch` if the checkpoint belongs to another topic or cluster, `OffsetsInvalid` or
    `OptionInvalid` if an argument is invalid, and `cluster.client.ClientError`, for example TopicNotFound.
    """
    given = check_keywords(options, StreamKeywords)
    read = stream_options(topic, given)
    bodies = parse_body_columns(spark, given.get("columns"), given)
    if bodies is not None:
        read = replace(read, columns=bodies.read_columns)
    partitions = given.get("minPartitions", spark.sparkContext.defaultParallelism)
    name = read.topics.label
    checkpoint = as_path("checkpointLocation", checkpointLocation)
    directory = StreamManifestDirectory(spark, checkpoint, name, SystemClock())
    planned = PlanOptions(
        name,
        TopicQueues(read).cluster_name(check_start=directory.source() is None),
        Limits(given.get("maxOffsetsPerTrigger"), partitions),
        read.fail_on_data_loss,
        given.get("pollIntervalMs", 100) / 1000,
        given.get("fetchOffsetNumRetries", 30),
        given.get("fetchOffsetRetryIntervalMs", 1000) / 1000,
        int(spark.conf.get(RETAINED_BATCHES)),
    )
    check_stream_checkpoint(directory, str(read.topics), planned.cluster)
    reader = _reader(read, directory.checkpoint)
    directory.create()
    stream = TopicStream(spark, directory, read, planned)
    listener_of(spark).add(stream)
    return messages_of(stream.manifest_frame().repartition(partitions), reader, read.columns, bodies)


def _reader(read: ReadOptions, checkpoint: str) -> StreamManifestReader:
    addresses = ClientConfig(read.nameservers).addresses()
    if read.lake is None:
        return StreamManifestReader(reader_of(read), addresses, checkpoint)
    from jobs.lake.history import stream_sources  # PyIceberg is an optional dependency

    sources, selected = stream_sources(read)
    return StreamManifestReader(reader_of(read, selected=selected), addresses, checkpoint, sources)


def messages_of(
    ranges: DataFrame, reader: StreamManifestReader, columns: Sequence[str], bodies: BodyColumns | None
) -> DataFrame:
    """Return the messages of the offset ranges in `ranges`, with the typed columns `bodies` if given."""
    if bodies is None:
        return ranges.mapInArrow(reader, spark_schema(columns))
    return bodies.finish(ranges.mapInArrow(bodies.mapper(reader), bodies.mapped_schema))


def check_stream_checkpoint(directory: StreamManifestDirectory, topic: str, cluster: str) -> None:
    """Raise `CheckpointMismatch` if the checkpoint belongs to a query of another topic or cluster."""
    source = directory.source()
    if source is None and directory.has_batches():
        used = ", ".join(directory.used_topics()) or "no topic of RayMQ"
        raise CheckpointMismatch(
            f"checkpoint {directory.checkpoint} belongs to a query that reads {used}, not {topic}: give a new"
            " checkpointLocation"
        )
    if source is not None and source["cluster"] != cluster:
        raise CheckpointMismatch(
            f"checkpoint {directory.checkpoint} belongs to a query that reads {topic} of cluster"
            f" {source['cluster']}, not of cluster {cluster}: give a new checkpointLocation, or the"
            f" nameservers of {source['cluster']}"
        )


class TopicQueues:
    """Requests the offsets of the queues of a stream. Keeps its connections open until `close`."""

    def __init__(self, options: ReadOptions) -> None:
        self._admin = Admin(options.nameservers)
        self._options = options

    def states(self) -> list[QueueState]:
        """Return the current offsets of the queues. Raises ClientError."""
        return states_of(self._admin, *self._options.topics.find(self._admin))

    def past_ends(self, states: Sequence[QueueState], positions: Positions, epochs: Epochs) -> Positions:
        """Return the queues whose log went back, as `gone_back` does. Raises FetchFailed."""
        return gone_back(states, positions, epochs)

    def starting(self, states: Sequence[QueueState]) -> Offsets:
        """Return the offsets at which a new query starts. Raises ClientError and OffsetsInvalid."""
        return find_start(self._admin, self._options, states)

    def history(self) -> tuple[ReadPlan, list[QueueState]] | None:
        """Return where a new query starts that begins in tables, or None. Raises as `plan_lake_read` does."""
        if self._options.lake is None:
            return None
        from jobs.lake.history import plan_with_states  # PyIceberg is an optional dependency

        return plan_with_states(self._options)

    def cluster_name(self, *, check_start: bool) -> str:
        """Return the name of the cluster of the topics, then close the connections.

        With `check_start`, also check the options for the start of a new query. Raises OffsetsInvalid if they
        are invalid for the queues, and ClientError.
        """
        with self._admin as admin:
            states = self.states()
            if check_start:
                option = self._options.starting.option
                self.starting(states).check_known(option, (state.queue for state in states))
            brokers = {state.queue.broker_name for state in states}
            clusters = admin.cluster_info().clusters
        return ",".join(sorted(name for name, members in clusters.items() if brokers & set(members)))

    def close(self) -> None:
        """Close the connections to the brokers and nameservers."""
        self._admin.close()


@dataclass(frozen=True)
class TopicStream:
    """The stream of one query, which may be restarted any number of times."""

    spark: SparkSession
    directory: StreamManifestDirectory
    read: ReadOptions
    options: PlanOptions

    @property
    def manifests(self) -> str:
        """The manifest directory, as the path of Spark's file source, which takes it for a pattern."""
        return escaped_pattern(self.directory.manifests)

    @property
    def metric(self) -> str:
        """The name of the stream's metrics in the progress reports of the query."""
        return f"raymq_{self.options.topic}"

    def manifest_frame(self) -> DataFrame:
        """Return a streaming DataFrame of the manifest rows. Each batch contains one manifest."""
        source = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(self.manifests)
        return source.observe(
            self.metric,
            F.sum(F.expr("end - begin")).alias("messages"),
            F.sum("lag").alias("lag"),
            F.max("number").alias("manifest"),
        )

    def planner(self, query_id: str, checkpoint: str, is_query_alive: Callable[[], bool]) -> Planner | None:
        """Return a planner for the query, or None if its checkpoint is not the checkpoint of this stream.

        In the second case the query fails in its first batch. If the stream has no manifest yet, this method
        writes one with the reason; otherwise the batch reads a manifest of another query.
        """
        if checkpoint == self.directory.checkpoint:
            queues = TopicQueues(self.read)
            return Planner(self.directory, queues, self.options, query_id, is_query_alive)
        if self.directory.is_empty():
            self.directory.write(
                0,
                encode_fault(
                    0,
                    query_id,
                    f"the query has checkpoint {checkpoint}, but its stream has checkpoint"
                    f" {self.directory.checkpoint}: give read_stream and writeStream the same"
                    " checkpointLocation, and each query its own",
                ),
            )
        return None
