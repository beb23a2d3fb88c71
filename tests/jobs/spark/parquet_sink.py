"""A query that streams a topic to Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobs import read_stream
from tests.eventually import LIMIT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

Through = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Sink:
    """A stream of one topic into Parquet files, below one directory."""

    def __init__(self, spark: SparkSession, nameservers: str, topic: str, root: Path) -> None:
        self.checkpoint = str(root / "check point")
        self._spark = spark
        self._nameservers = nameservers
        self.topic = topic
        self._output = str(root / "output")

    def start(
        self, trigger: dict[str, Any] | None = None, through: Through | None = None, **options: Any
    ) -> StreamingQuery:
        """Start the query; `through` is a function of `mapInArrow` between topic and files."""
        frame = read_stream(
            self._spark,
            self.topic,
            checkpointLocation=self.checkpoint,
            nameservers=self._nameservers,
            columns=["brokerName", "queueId", "queueOffset", "body"],
            pollIntervalMs=20,
            **options,
        )
        if through is not None:
            frame = frame.mapInArrow(through, frame.schema)
        writer = frame.writeStream.format("parquet").option("path", self._output)
        writer = writer.option("checkpointLocation", self.checkpoint)
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def drain(self, **options: Any) -> list[int]:
        """Read what is there now. Return the numbers of messages of each batch."""
        query = self.start({"availableNow": True}, **options)
        assert query.awaitTermination(int(LIMIT_S))
        metric = f"raymq_{self.topic}"
        return [
            each["observedMetrics"][metric]["messages"]
            for each in query.recentProgress
            if metric in each.get("observedMetrics", {})
        ]

    def bodies(self) -> list[str]:
        """Return the bodies of the rows that the sink has, sorted."""
        if not Path(self._output, "_spark_metadata").exists():
            return []
        frame = self._spark.read.schema("body binary").parquet(self._output)
        return sorted(bytes(row["body"]).decode() for row in frame.collect())

    def batches(self) -> int:
        return sum(each.name.isdecimal() for each in Path(self.checkpoint, "commits").iterdir())
