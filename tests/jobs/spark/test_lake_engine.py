"""SparkEngine: Spark's workers write the files of a round."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs.job_errors import LakeUnavailable
from jobs.lake.lake_table import LakeState
from jobs.lake.round import write_round
from jobs.lake.write_rows import WriteTask, WrittenRows
from jobs.lake_service import engines
from jobs.lake_service.engines import SparkEngine
from jobs.reading.describe import describe_topic
from jobs.reading.splits import NO_STORE
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


class Broken(SparkEngine):
    """An engine whose tasks have a bug."""

    def run(self, tasks: Sequence[WriteTask]) -> list[WrittenRows]:
        return super().run([replace(each, target=None) for each in tasks])  # type: ignore[arg-type]


class Waiting(SparkEngine):
    """An engine whose tasks wait for a broker that does not respond."""

    address = ""

    def run(self, tasks: Sequence[WriteTask]) -> list[WrittenRows]:
        split = replace(tasks[0].splits[0], location=replace(NO_STORE, address=self.address))
        return super().run([replace(tasks[0], splits=(split,))])


def test_spark_writes_the_files_of_a_round(spark: SparkSession, orders: Orders, tmp_path: Path) -> None:
    table = table_of(catalog_of(tmp_path))
    with pytest.raises(LakeUnavailable, match="the file file:///proc/lake"):
        write_round(table, lambda: describe_topic(orders.nameservers, TOPIC), Misplaced(spark))
    result = write_round(table, lambda: describe_topic(orders.nameservers, TOPIC), SparkEngine(spark))
    assert result.rows == MESSAGES + 1
    assert table.iceberg.scan().to_arrow().num_rows == MESSAGES + 1


def test_job_of_a_round_that_fails_or_takes_too_long_leaves_the_lake_running(
    spark: SparkSession, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(catalog_of(tmp_path))
    with pytest.raises(LakeUnavailable, match="round failed: AttributeError: 'NoneType' object"):
        write_round(table, lambda: describe_topic(orders.nameservers, TOPIC), Broken(spark))
    monkeypatch.setattr(engines, "TASKS_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = Waiting(spark)
        engine.address = "{}:{}".format(*silent.getsockname())
        with pytest.raises(LakeUnavailable, match="cancelled"):
            write_round(table, lambda: describe_topic(orders.nameservers, TOPIC), engine)
    assert table.state() == LakeState()
