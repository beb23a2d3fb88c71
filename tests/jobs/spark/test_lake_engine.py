"""SparkEngine: Spark's workers write the files of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs.job_errors import LakeUnavailable
from jobs.lake.round import write_round
from jobs.lake.write_rows import WriteTask, WrittenRows
from jobs.lake_service.engines import SparkEngine
from jobs.reading.describe import describe_topic
from tests.jobs.conftest import MESSAGES, TOPIC, Orders
from tests.jobs.lake.lake_files import catalog_of, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Misplaced(SparkEngine):
    """An engine whose tasks cannot write to their directory."""

    def run(self, tasks: Sequence[WriteTask]) -> list[WrittenRows]:
        return super().run(
            [replace(each, target=replace(each.target, location="file:///proc/lake")) for each in tasks]
        )


def test_spark_writes_the_files_of_a_round(spark: SparkSession, orders: Orders, tmp_path: Path) -> None:
    table = table_of(catalog_of(tmp_path))
    with pytest.raises(LakeUnavailable, match="the file file:///proc/lake"):
        write_round(table, lambda: describe_topic(orders.nameservers, TOPIC), Misplaced(spark))
    result = write_round(table, lambda: describe_topic(orders.nameservers, TOPIC), SparkEngine(spark))
    assert result.rows == MESSAGES + 1
    assert table.iceberg.scan().to_arrow().num_rows == MESSAGES + 1
