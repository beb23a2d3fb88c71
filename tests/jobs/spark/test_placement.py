"""Preferred nodes of the partitions of a Spark read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobs.spark.java import java_session
from jobs.spark.placement import placed_indexes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_mapped_partitions_prefer_the_nodes_of_their_brokers(spark: SparkSession) -> None:
    indexes = placed_indexes(spark, ["10.0.0.1", "", "10.0.0.2"])
    assert [row.value for row in indexes.collect()] == [0, 1, 2]
    read = indexes.mapInArrow(lambda batches: batches, "value int").where("value >= 0")
    partitions = read._jdf.queryExecution().toRdd()  # noqa: SLF001
    context = java_session(spark).sparkContext()
    preferred = [context.getPreferredLocs(partitions, number).mkString() for number in range(3)]
    assert preferred == ["10.0.0.1", "", "10.0.0.2"]
