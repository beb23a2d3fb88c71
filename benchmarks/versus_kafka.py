"""Compare RayMQ with Apache Kafka as source and sink of Spark and Ray Data, in one Spark session.

    uv run --with confluent-kafka python -m benchmarks.versus_kafka [--case NAME …] [--messages 5000000]
                                                         [--body-bytes 128] [--rounds 3] [--cold] [--json]

Cases: write, read-bodies, read-all, read-positions, ray-data (needs confluent-kafka), stream,
lake (all messages into a new Iceberg table, for Kafka by Spark Structured Streaming). Both brokers run on
this machine at the same time, each with one topic of 8 queues; the order of the sides alternates from round
to round, and the results are the medians. Both topics are written once before the first case, and
number, length and checksum of their bodies are compared with the rows that were written. RayMQ runs as a
topology of one broker on Ray, Kafka as one process in KRaft mode with default settings; neither waits for
the disk. A slow disk may still stop Kafka for seconds, because both sides write some 10 GB in the case write;
`TMPDIR=/dev/shm` keeps both stores in memory. Before the first case, the page cache is filled as on a machine
that has been running for a while (`benchmarks.page_cache`); `--cold` omits that. Spark runs as `local[2]`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from benchmarks.bulk_sides import KafkaSide, RayMQSide, Side, has_confluent_kafka
from benchmarks.comparison import run_comparison
from benchmarks.kafka import ICEBERG, SPARK_KAFKA, Kafka, kafka_jars
from benchmarks.page_cache import full_page_cache
from benchmarks.raymq_on_ray import RayMQOnRay
from cluster.interrupts import interrupt_once
from jobs import local_session

QUEUES = 8
STREAM_ROWS = 10_000
STREAM_BATCHES = 10
STREAM_TIMEOUT_S = 120
TOPIC = "versus"


@dataclass(frozen=True)
class Case:
    """One comparison: `floor` and `aim` are limits of RayMQ ÷ Kafka; for a latency, upper limits."""

    unit: str
    floor: float
    aim: float

    @property
    def is_latency(self) -> bool:
        """Return True if smaller figures are better."""
        return self.unit == "ms"


CASES = {
    "write": Case("rows/s", 1.5, 4),
    "read-bodies": Case("rows/s", 4, 8),
    "read-all": Case("rows/s", 2, 4),
    "read-positions": Case("rows/s", 3, 6),
    "ray-data": Case("rows/s", 3, 10),
    "stream": Case("ms", 1.0, 0.5),
    "lake": Case("rows/s", 3, 6),
}


class SidesDiffer(Exception):
    """The messages that were read are not those that were written."""


def main() -> int:
    """Run the comparison and print its results. Return the exit code."""
    options = _options()

    def compare() -> None:
        with tempfile.TemporaryDirectory(prefix="versus-kafka-") as root:
            _compare(options, Path(root))

    return run_comparison(compare, SidesDiffer)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.versus_kafka", description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=list(CASES), help="run only this case; repeatable")
    parser.add_argument("--messages", type=int, default=5_000_000, help="number of messages in each topic")
    parser.add_argument("--body-bytes", type=int, default=128, help="size of a body")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side")
    parser.add_argument("--cold", action="store_true", help="leave free memory as it is")
    parser.add_argument("--json", action="store_true", help="print one line of JSON per case")
    return parser.parse_args()


def _compare(options: argparse.Namespace, root: Path) -> None:
    settings = {
        "spark.jars": ",".join(
            str(jar) for name in (SPARK_KAFKA, ICEBERG) for jar in sorted(kafka_jars(name).glob("*.jar"))
        ),
        "spark.driver.memory": "3g",
    }
    cases = options.case or [name for name in CASES if name != "ray-data" or has_confluent_kafka()]
    with Kafka(root / "kafka", QUEUES) as kafka, RayMQOnRay(root / "raymq", "async") as raymq:
        spark = local_session("versus-kafka", settings=settings)
        try:
            sides: Mapping[str, Side] = {
                "raymq": RayMQSide(spark, raymq.nameserver_address, QUEUES),
                "kafka": KafkaSide(spark, kafka),
            }
            runs = _Runs(spark, sides, options, root)
            runs.prepare()
            with nullcontext() if options.cold else full_page_cache():
                for name in cases:
                    _print(name, runs.figures(name), options)
        finally:
            spark.stop()
            ray.shutdown()


class _Runs:
    """The measurements of both sides."""

    def __init__(
        self, spark: SparkSession, sides: Mapping[str, Side], options: argparse.Namespace, root: Path
    ) -> None:
        self._spark = spark
        self._sides = sides
        self._options = options
        self._root = root
        self._writes = 0
        self._other: Mapping[str, Callable[[str], float]] = {
            "write": self._write,
            "stream": self._stream,
            "lake": self._lake,
        }

    def prepare(self) -> None:
        """Write the topic of each side and compare what is stored. Raises SidesDiffer."""
        rows = self._rows(self._options.messages)
        expected = _checksums(rows)
        for name, side in self._sides.items():
            side.create(TOPIC)
            side.write(rows, TOPIC)
            found = _checksums(side.bodies(TOPIC))
            if found != expected:
                raise SidesDiffer(f"{name} has {found}, but {expected} was written (rows, bytes, checksum)")

    def figures(self, case: str) -> Mapping[str, list[float]]:
        """Return the figure of each round, by side, after one round that is not counted."""
        reads: Mapping[str, Callable[[Side], None]] = {
            "read-bodies": lambda side: _sum_of_lengths(side.bodies(TOPIC)),
            "read-all": lambda side: _discard(side.all_columns(TOPIC)),
            "read-positions": lambda side: _discard(side.positions(TOPIC)),
            "ray-data": lambda side: _count_blocks(side, self._options.messages),
        }
        measure = partial(self._read, reads[case]) if case in reads else self._other[case]
        if case == "ray-data" and not ray.is_initialized():
            ray.init(
                "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="warning"
            )
            interrupt_once()  # `ray.init` has replaced the handler of SIGTERM
            ray.data.DataContext.get_current().enable_progress_bars = False
        found: dict[str, list[float]] = {name: [] for name in self._sides}
        for number in range(self._options.rounds + 1):
            for name in sorted(self._sides, reverse=number % 2 == 0):
                figure = measure(name)
                if number:
                    found[name].append(figure)
                    print(f"{case} round {number} {name:6} {figure:12,.0f}", file=sys.stderr)
        return found

    def _rows(self, count: int) -> DataFrame:
        """Return `count` rows with bodies of digits, in two partitions.

        The leading zeros are a constant: padding a whole body takes Spark as long as writing it to a queue.
        """
        digits = min(len(str(count)), self._options.body_bytes)
        zeros = F.lit("0" * (self._options.body_bytes - digits))
        number = F.lpad(F.col("id").cast("string"), digits, "0")
        return self._spark.range(0, count, 1, 2).select(F.concat(zeros, number).cast("binary").alias("body"))

    def _write(self, name: str) -> float:
        self._writes += 1
        side, rows, topic = self._sides[name], self._rows(self._options.messages), f"{TOPIC}-{self._writes}"
        side.create(topic)
        os.sync()  # otherwise the disk would still write what the other side has left in the page cache
        begin = time.perf_counter()
        side.write(rows, topic)
        return float(self._options.messages / (time.perf_counter() - begin))

    def _read(self, read: Callable[[Side], None], name: str) -> float:
        begin = time.perf_counter()
        read(self._sides[name])
        return float(self._options.messages / (time.perf_counter() - begin))

    def _lake(self, name: str) -> float:
        self._writes += 1
        warehouse = self._root / f"lake-{self._writes}"
        begin = time.perf_counter()
        found = self._sides[name].fill_table(TOPIC, warehouse)
        figure = self._options.messages / (time.perf_counter() - begin)
        if found != self._options.messages:
            raise SidesDiffer(f"{name}: {found} of {self._options.messages} rows are in the table")
        shutil.rmtree(warehouse)
        return float(figure)

    def _stream(self, name: str) -> float:
        """Return the median time in ms from the store time of the last row of a batch to its processing."""
        self._writes += 1
        topic, side = f"stream-{self._writes}", self._sides[name]
        side.create(topic)
        checkpoint = str(self._root / f"checkpoint-{self._writes}")
        processed, latencies = 0, []
        last_s = 0.0

        def process(batch: DataFrame, _batch_id: int) -> None:
            nonlocal processed, last_s
            row = batch.agg(F.count("*"), F.sum(F.length("body")), F.max("stored").cast("double")).head()
            assert row is not None
            processed += row[0]
            if row[0]:
                last_s = time.time() - row[2]

        query = (
            side.stream(topic, checkpoint)
            .writeStream.foreachBatch(process)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        try:
            # The first batches are not counted: the query starts at the end of the topic.
            for number in range(STREAM_BATCHES + 2):
                expected = processed + STREAM_ROWS
                side.write(self._rows(STREAM_ROWS), topic)
                deadline = time.monotonic() + STREAM_TIMEOUT_S
                while processed < expected and time.monotonic() < deadline and query.isActive:
                    time.sleep(0.002)
                if processed != expected and number:
                    raise SidesDiffer(f"{name} processed {processed} of {expected} rows: {query.exception()}")
                if number >= 2:
                    latencies.append(last_s * 1000)
        finally:
            query.stop()
        return statistics.median(latencies)


def _checksums(rows: DataFrame) -> tuple[int, int, int]:
    row = rows.agg(
        F.count("*"), F.sum(F.length("body")), F.sum(F.xxhash64("body").cast("decimal(38,0)"))
    ).head()
    assert row is not None
    return int(row[0]), int(row[1]), int(row[2])


def _sum_of_lengths(rows: DataFrame) -> None:
    rows.agg(F.sum(F.length("body"))).collect()


def _discard(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _count_blocks(side: Side, messages: int) -> None:
    found = sum(batch["body"].__len__() for batch in side.dataset(TOPIC).iter_batches(batch_format="pyarrow"))
    if found != messages:
        raise SidesDiffer(f"Ray Data read {found} of {messages} messages")


def _print(name: str, figures: Mapping[str, list[float]], options: argparse.Namespace) -> None:
    case = CASES[name]
    medians = {side: statistics.median(values) for side, values in figures.items()}
    ratio = medians["raymq"] / medians["kafka"]

    def reaches(limit: float) -> bool:
        return ratio <= limit if case.is_latency else ratio >= limit

    verdict = "aim" if reaches(case.aim) else "floor" if reaches(case.floor) else "missed"
    if options.json:
        report = {
            "name": f"versus-kafka {name}",
            "unit": case.unit,
            "messages": options.messages,
            "body_bytes": options.body_bytes,
            "rounds": figures,
            "medians": medians,
            "ratio": ratio,
            "floor": case.floor,
            "aim": case.aim,
            "reached": verdict,
        }
        print(json.dumps(report), flush=True)
        return
    shown = "  ".join(f"{side} {value:12,.1f}" for side, value in medians.items())
    print(
        f"{name:16}{shown} {case.unit:8} ours ÷ Kafka {ratio:5.2f}  floor {case.floor:g}  aim {case.aim:g}"
        f"  reached: {verdict}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
