"""Other engines see the rows of a table that RayMQ reads: PyIceberg, pandas, polars, DuckDB, Spark."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.lake.lake_table import LakeTable
from jobs.lake.round import write_round
from jobs.reading.describe import describe_topic
from tests.jobs.conftest import ClusterThread
from tests.jobs.lake.history_topic import TOPIC, HistoryTopic
from tests.jobs.lake.lake_files import rows_of

Row = tuple[str, int, int, bytes, str]
JAR = "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.9.2"
COLUMNS = ("broker", "queue", "offset", "body", "keys")
FETCH_LIMIT_S, SPARK_LIMIT_S = 300, 300

READ_BY_SPARK = """
import json, sys
from pyspark.sql import SparkSession
jar, metadata = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.jars", jar).config("spark.ui.enabled", "false")
with spark.getOrCreate() as session:
    frame = session.read.format("iceberg").load(metadata)
    rows = frame.selectExpr("broker", "queue", "offset", "cast(body as string) body", "keys").collect()
    print("ROWS", json.dumps([list(row) for row in rows]))
"""


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HistoryTopic]:
    running = ClusterThread(tmp_path_factory.mktemp("stores"))
    try:
        topic = HistoryTopic(running.cluster.nameserver_address, tmp_path_factory.mktemp("lake"))
        write_round(topic.table, lambda: describe_topic(topic.nameservers, TOPIC))
        yield topic
    finally:
        running.stop()


@pytest.fixture
def expected(topic: HistoryTopic) -> list[Row]:
    """Return the rows of the table as RayMQ reads them."""
    topic.table.refresh()
    rows = rows_of(topic.plan(has_tail=False)).select(
        ["brokerName", "queueId", "queueOffset", "body", "keys"]
    )
    return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def _of_arrow(table: LakeTable) -> pa.Table:
    return table.iceberg.scan(selected_fields=COLUMNS).to_arrow()


def _of_pandas(table: LakeTable) -> pa.Table:
    return pa.Table.from_pandas(table.iceberg.scan(selected_fields=COLUMNS).to_pandas(), preserve_index=False)


def _of_polars(table: LakeTable) -> pa.Table:
    return table.iceberg.to_polars().select(COLUMNS).collect().to_arrow()


def _of_duckdb(table: LakeTable) -> pa.Table:
    import duckdb

    uris = table.iceberg.inspect.files()["file_path"].to_pylist()
    files = [unquote(urlsplit(uri).path) for uri in uris]
    with duckdb.connect() as connection:
        found = connection.sql("SELECT * FROM read_parquet(?)", params=[files])
        return found.to_arrow_table().select(COLUMNS)


def test_files_have_only_encodings_that_readers_of_iceberg_know(topic: HistoryTopic) -> None:
    for uri in topic.table.iceberg.inspect.files()["file_path"].to_pylist():
        metadata = pq.ParquetFile(unquote(urlsplit(uri).path)).metadata
        for group in (metadata.row_group(index) for index in range(metadata.num_row_groups)):
            found = {each for index in range(group.num_columns) for each in group.column(index).encodings}
            assert found <= {"PLAIN", "RLE", "RLE_DICTIONARY", "PLAIN_DICTIONARY"}


@pytest.mark.parametrize("read", [_of_arrow, _of_pandas, _of_polars, _of_duckdb])
def test_engine_sees_the_rows_of_the_table(
    topic: HistoryTopic,
    expected: list[Row],
    read: Callable[[LakeTable], pa.Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own planner is another package
    found = read(topic.table)
    columns = (found[name].to_pylist() for name in COLUMNS)
    assert sorted(zip(*columns, strict=True)) == expected
    assert len(expected) == 400


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
def test_spark_with_iceberg_runtime_sees_the_rows(
    topic: HistoryTopic, expected: list[Row], tmp_path: Path
) -> None:
    """Spark reads the table by Iceberg's own jar from Maven Central, which RayMQ itself does not need."""
    if shutil.which("mvn") is None:
        pytest.skip("Maven, which fetches Iceberg's runtime, is not installed")
    fetch = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={JAR}", f"-DoutputDirectory={tmp_path}"]
    fetched = subprocess.run(fetch, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False)
    jars = list(tmp_path.glob("*.jar"))
    if not jars:
        pytest.skip(f"{JAR} cannot be fetched: {fetched.stdout[-300:]}")
    done = subprocess.run(
        [sys.executable, "-c", READ_BY_SPARK, str(jars[0]), topic.table.iceberg.metadata_location],
        capture_output=True,
        text=True,
        timeout=SPARK_LIMIT_S,
        check=False,
    )
    line = next((each for each in done.stdout.splitlines() if each.startswith("ROWS ")), None)
    assert line is not None, done.stderr[-2000:]
    found = [(*row[:3], row[3].encode(), row[4]) for row in json.loads(line.removeprefix("ROWS "))]
    assert sorted(found) == expected
