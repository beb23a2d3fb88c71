"""lake-scan: read a topic with Spark local[2], nine tenths from its table and the rest from mapped files.

Each part also reads all messages from mapped files, in turn. `ratio_to_log` compares the rates (floor 0.7),
`cpu_ratio_to_log` the CPU time of Spark and its workers, which other load on the machine changes less.
"""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.internals.comparing import compared
from benchmarks.internals.options import InternalsOptions
from benchmarks.processes import cpu_seconds
from cluster.lab.bench.broker import bench_root
from cluster.lab.bench.options import BenchFailed
from cluster.lab.bench.result import BenchResult, Run
from cluster.lab.bench.sending import QUEUES, backlog_pool, filled_cluster
from cluster.lab.bench.stolen import StolenShare
from jobs import local_session, read_queue
from jobs.lake.catalogs import lake_settings, open_catalog
from jobs.lake.lake_table import LakeTable
from jobs.lake.round import RoundOptions, write_round
from jobs.reading.describe import describe_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CORES = 2
TOPIC = "bench"
HISTORY = 0.9
"""Part of the messages that are read from the table."""
PARTS: dict[str, dict[str, Any]] = {
    "lake-scan-bodies": {"columns": ["body"]},
    "lake-scan-positions": {"columns": ["brokerName", "queueId", "queueOffset", "storeTimestamp"]},
    "lake-scan-all": {},
}


def run(options: InternalsOptions) -> list[BenchResult]:
    """Measure each part from table and log, and from the log alone, in turn."""
    pool, rounds = backlog_pool(options)
    with (
        filled_cluster(options, "lake-scan: sending", pool, rounds) as (cluster, messages),
        bench_root(options) as warehouse,
    ):
        table = LakeTable.create(open_catalog(lake_settings(str(warehouse), warehouse)), "raymq", TOPIC)
        limit = RoundOptions(messages_max=int(messages * HISTORY))
        written = write_round(table, lambda: describe_topic(cluster.nameservers, TOPIC), options=limit)
        spark = local_session("raymq-bench", CORES)
        try:
            results = []
            for name, columns in PARTS.items():
                log = read_queue(spark, TOPIC, nameservers=cluster.nameservers, **columns)
                both = read_queue(
                    spark, TOPIC, nameservers=cluster.nameservers, lake="with_tail",
                    warehouse=str(warehouse), **columns,
                )  # fmt: skip
                parameters = {"messages": messages, "history": written.rows, "body_bytes": options.body_bytes}
                results.append(_compare(options, name, log, both, {**parameters, "queues": QUEUES}))
            return results
        finally:
            spark.stop()


def _compare(
    options: InternalsOptions, name: str, log: DataFrame, both: DataFrame, parameters: dict[str, Any]
) -> BenchResult:
    messages, stolen = parameters["messages"], []
    measured: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    if both.count() != messages:
        raise BenchFailed(f"{name}: table and log have {both.count():,} of {messages:,} messages")
    for number in range(-1, options.runs):  # the first one is not counted
        options.progress(f"{name}: run {number + 1} of {options.runs}")
        share = StolenShare()
        pair = {
            has_table: _read(both if has_table else log) for has_table in (number % 2 == 0, number % 2 != 0)
        }
        if number >= 0:
            for has_table, figures in pair.items():
                measured[has_table].append(figures)
            stolen.append(share.so_far())
    pairs = list(zip(measured[False], measured[True], strict=True))
    log_s = statistics.median(seconds for seconds, _ in measured[False])
    shown = {
        "messages_per_s_of_log": round(messages / log_s),
        **compared("ratio_to_log", [one / other for (one, _), (other, _) in pairs], stolen),
        **compared("cpu_ratio_to_log", [one / other for (_, one), (_, other) in pairs], stolen),
    }
    runs = [Run(seconds, messages, messages * options.body_bytes) for seconds, _ in measured[True]]
    return BenchResult(name, runs, parameters | shown)


def _read(frame: DataFrame) -> tuple[float, float]:
    """Return the elapsed time and the CPU time of Spark in seconds."""
    started, cpu_s = time.perf_counter(), _cpu_s()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started, _cpu_s() - cpu_s


def _cpu_s() -> float:
    """Return the CPU time of Spark and its workers, and of the broker, which is idle meanwhile."""
    found = 0.0
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # an idle worker may end
            found += cpu_seconds(each.pid)
    return found
