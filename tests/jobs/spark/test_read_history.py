"""`read_queue` with `lake`: history and the log in one DataFrame, with Spark and without the Iceberg jar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from jobs import read_queue
from jobs.job_errors import OptionInvalid
from tests.jobs.conftest import ClusterThread
from tests.jobs.lake.history_topic import TOPIC, HistoryTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HistoryTopic]:
    running = ClusterThread(tmp_path_factory.mktemp("stores"))
    try:
        yield HistoryTopic(running.cluster.nameserver_address, tmp_path_factory.mktemp("lake"))
    finally:
        running.stop()


def test_frame_has_history_and_tail_with_one_schema(spark: SparkSession, topic: HistoryTopic) -> None:
    def read(**options: Any) -> Any:
        return read_queue(spark, TOPIC, nameservers=topic.nameservers, **options)

    log, lake = read(), read(lake="with_tail", warehouse=topic.warehouse, minPartitions=6)
    assert lake.schema == log.schema
    plain = [name for name in log.columns if name != "properties"]
    both = [
        each.selectExpr(*plain, "array_sort(map_entries(properties)) AS properties") for each in (log, lake)
    ]
    assert both[0].exceptAll(both[1]).count() == both[1].exceptAll(both[0]).count() == 0
    assert lake.count() == lake.select("brokerName", "queueId", "queueOffset").distinct().count() == 400
    only = read(lake="only", warehouse=topic.warehouse, columns=["body"], where="tags = 'tag-0'")
    assert sorted(int(row["body"]) for row in only.collect()) == list(range(0, 300, 3))


def test_bodies_of_history_and_tail_are_decoded(spark: SparkSession, topic: HistoryTopic) -> None:
    with pytest.raises(OptionInvalid, match="where: give also lake="):
        read_queue(spark, TOPIC, nameservers=topic.nameservers, where="queueId = 1")
    frame = read_queue(
        spark,
        TOPIC,
        nameservers=topic.nameservers,
        lake="with_tail",
        warehouse=topic.warehouse,
        columns=["queueOffset"],
        schema="n BIGINT, _corrupt_record STRING",
        format="json",
    )
    texts = frame.selectExpr("cast(_corrupt_record as int) AS n").collect()  # a number is JSON, but no object
    assert sorted(row["n"] for row in texts) == list(range(400))
