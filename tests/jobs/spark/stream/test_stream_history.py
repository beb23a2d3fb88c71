"""`read_stream` that begins in the table of its topic and continues in the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs import read_stream
from jobs.job_errors import OptionInvalid
from jobs.reading.options.lake_options import LakeOptions
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.options.topics import TopicNames
from jobs.spark.stream.manifest_directory import StreamManifestDirectory
from jobs.spark.stream.plan import Limits
from jobs.spark.stream.planner import Planner, PlanOptions
from jobs.spark.stream.read_stream import TopicQueues
from store.common.clock import SystemClock
from tests.eventually import eventually
from tests.jobs.conftest import ClusterThread
from tests.jobs.lake.history_topic import TOPIC, HistoryTopic
from tests.jobs.lake.lake_files import fill_table
from tests.jobs.spark.parquet_sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[HistoryTopic]:
    running = ClusterThread(tmp_path / "stores")
    try:
        yield HistoryTopic(running.cluster.nameserver_address, tmp_path / "lake")
    finally:
        running.stop()


def _options(topic: HistoryTopic, **options: Any) -> dict[str, Any]:
    return {
        "startingOffsets": "earliest",
        "lake": "with_tail",
        "warehouse": topic.warehouse,
        "minPartitions": 2,
        **options,
    }


def _numbers(stream: Sink) -> list[int]:
    return sorted(map(int, stream.bodies()))


def test_stream_begins_in_history_and_continues_in_the_log(
    spark: SparkSession, topic: HistoryTopic, tmp_path: Path
) -> None:
    stream = Sink(spark, topic.nameservers, TOPIC, tmp_path)
    sizes = stream.drain(**_options(topic, maxOffsetsPerTrigger=100))
    assert max(sizes) <= 100
    assert len(sizes) >= 4
    assert _numbers(stream) == list(range(400))
    fill_table(topic.table, topic.nameservers)  # what the stream has read may come into the table
    topic.send(400, 450)
    assert stream.drain(**_options(topic)) == [50]
    topic.send(450, 460)
    assert stream.drain(startingOffsets="earliest") == [10]  # the history is read, so lake= may be left out
    assert _numbers(stream) == list(range(460))


def test_running_query_reads_history_then_new_messages(
    spark: SparkSession, topic: HistoryTopic, tmp_path: Path
) -> None:
    stream = Sink(spark, topic.nameservers, TOPIC, tmp_path)
    query = stream.start(**_options(topic, where="tags = 'tag-1'"))
    try:
        eventually(lambda: _numbers(stream) == list(range(1, 400, 3)), "history and tail")
        topic.send(400, 403)
        eventually(lambda: _numbers(stream) == list(range(1, 403, 3)), "a new message")
        assert query.exception() is None
    finally:
        query.stop()


def test_start_that_was_interrupted_is_repeated_as_a_whole(
    spark: SparkSession, topic: HistoryTopic, tmp_path: Path
) -> None:
    class Interrupted(StreamManifestDirectory):
        """Ends the process before the start is marked, so that nothing is cleaned up."""

        def write_source(self, content: dict[str, Any]) -> None:
            raise SystemExit

    stream = Sink(spark, topic.nameservers, TOPIC, tmp_path)
    lake = LakeOptions(True, topic.warehouse)
    read = ReadOptions(TopicNames((TOPIC,)), nameservers=topic.nameservers, lake=lake)
    directory = Interrupted(spark, stream.checkpoint, TOPIC, SystemClock())
    directory.create()
    options = PlanOptions(TOPIC, "cluster", Limits(100, 2), True, 1, 0, 1, 100)
    with pytest.raises(SystemExit):
        Planner(directory, TopicQueues(read), options, "interrupted", lambda: True).start()
    assert not directory.is_empty()
    stream.drain(**_options(topic))
    assert _numbers(stream) == list(range(400))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lake": "only"}, "lake='only' has an end"),
        ({"startingOffsets": "latest"}, "give startingOffsets='earliest'"),
        ({"warehouse": "/nowhere-at-all"}, "has no table in the warehouse|cannot be used"),
    ],
)
def test_stream_of_history_with_wrong_options_is_refused(
    spark: SparkSession, topic: HistoryTopic, tmp_path: Path, options: dict[str, Any], error: str
) -> None:
    given = _options(topic, **options)
    if "warehouse" in options:
        given["warehouse"] = str(tmp_path / "empty")
    with pytest.raises(OptionInvalid, match=error):
        read_stream(spark, TOPIC, nameservers=topic.nameservers, checkpointLocation=tmp_path / "c", **given)
    with pytest.raises(OptionInvalid, match="topicPattern and lake"):
        read_stream(
            spark,
            topicPattern="h.*",
            nameservers=topic.nameservers,
            checkpointLocation=tmp_path / "c",
            **_options(topic),
        )
