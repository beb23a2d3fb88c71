"""Read a backlog that is larger than the memory of the readers, with Spark and with Ray Data.

    uv run python -m benchmarks.large_backlog [--bytes 8589934592] [--directory DIR] [--json]

A broker stores flights as JSON (`cluster.lab.demo.flights`), every body once, with `--bytes` bytes of bodies
in all. The readers are a Spark executor with two cores and 1 GB of memory, and Ray Data with an object store
of 200 MB:

    aggregate   Spark: typed columns, number of flights and mean delay by carrier
    sort        Spark: all bodies in order, which exceeds the memory and is spilled
    ray-data    Ray Data: number and size of all bodies

Each must read all messages. The peaks are those of the resident memory: of the executor's JVM, of its Python
workers without mapped files, and of all workers of Ray without mapped files.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.processes import anonymous_bytes, stop_broker
from cluster.client import Producer
from cluster.control.session.environment import TOKEN_PATH_ENV
from cluster.control.session.ray_session import SessionMode, Way, connect, disconnect
from cluster.control.topology.topology_file import load_topology
from cluster.lab.bench.broker import bench_root, running
from cluster.lab.bench.options import BenchFailed, BenchOptions
from cluster.lab.bench.sending import await_arrival, make_topic
from cluster.lab.demo.flights import ALL_FLIGHTS, as_messages, read_flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "flights"
EXECUTOR_MEMORY = "1g"
OBJECT_STORE_BYTES = 200 << 20
BODY_BYTES = 300
SAMPLE_S = 0.1
MIB = 1 << 20


@dataclass(frozen=True)
class Result:
    """The duration of one read, and peaks of the memory during it by kind of process."""

    name: str
    messages: int
    seconds: float
    peak_mib: dict[str, int]


def main() -> int:
    """Fill a store, read it in each way, print the results. Return 1 if a read failed."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.large_backlog", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--bytes", type=int, default=8 << 30, help="size of all bodies")
    parser.add_argument("--directory", type=Path, help="parent directory of the store")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    options = BenchOptions(directory=given.directory, progress=lambda line: print(line, file=sys.stderr))
    try:
        with bench_root(options) as root, running(root, "async") as cluster:
            messages = fill(cluster.nameservers, given.bytes, options)
            os.environ |= {TOKEN_PATH_ENV: str(root / "ray-token"), "SPARK_LOCAL_DIRS": str(root)}
            results = []
            for result in read_all(root, cluster.nameservers, messages):
                options.progress(f"large-backlog: {result}")
                results.append(result)
            stop_broker(cluster)
    except BenchFailed as error:
        print(f"benchmarks.large_backlog: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps({"messages": messages, "results": [asdict(each) for each in results]}))
        return 0
    for each in results:
        peaks = ", ".join(f"{name} {mib:,} MiB" for name, mib in each.peak_mib.items())
        print(f"{each.name:<10} {each.messages:>12,} messages {each.seconds:>8,.1f} s   peaks: {peaks}")
    return 0


def fill(nameservers: str, size_bytes: int, options: BenchOptions) -> int:
    """Send flights with `size_bytes` bytes of bodies. Return the number of messages."""
    flights = as_messages(read_flights(min(ALL_FLIGHTS, max(size_bytes // BODY_BYTES, 1))))
    make_topic(nameservers, TOPIC)
    messages = sent_bytes = 0
    with Producer(nameservers) as producer:
        while sent_bytes < size_bytes:
            bodies = unique_bodies(flights["body"], messages)
            table = flights.set_column(0, "body", bodies)
            producer.send_table(TOPIC, table, tags="tags", keys="keys", sharding_key="keys")
            messages += table.num_rows
            sent_bytes += pc.sum(pc.binary_length(bodies)).as_py()
            options.progress(f"large-backlog: sent {sent_bytes:,} of {size_bytes:,} bytes")
    await_arrival(nameservers, TOPIC, messages, None)
    return messages


def unique_bodies(bodies: pa.ChunkedArray, lap: int) -> pa.ChunkedArray:
    """Return JSON objects with an additional field `lap`."""
    return pc.replace_substring(bodies, pattern="{", replacement=f'{{"lap":{lap},', max_replacements=1)


def read_all(root: Path, nameservers: str, messages: int) -> Iterator[Result]:
    """Read the topic in each way. Raises BenchFailed if messages are missing."""
    from jobs import local_session

    settings = {
        "spark.driver.memory": EXECUTOR_MEMORY,  # a local session has one executor, in the driver
        "spark.sql.shuffle.partitions": "16",  # few, so that a partition exceeds the memory of its task
        "spark.sql.adaptive.enabled": "false",
    }
    with local_session("large-backlog", settings=settings) as spark:
        executor = executor_of(spark)
        yield measure("aggregate", partial(aggregate, spark, nameservers), messages, executor)
        yield measure("sort", partial(sort, spark, nameservers), messages, executor)
    overrides = ["ray.num_cpus=2", f"ray.object_store_memory_bytes={OBJECT_STORE_BYTES}"]
    connect(load_topology(overrides=overrides), root, Way(SessionMode.EMBEDDED))
    try:
        yield measure("ray-data", partial(count_dataset, nameservers), messages, None)
    finally:
        disconnect()


def aggregate(spark: SparkSession, nameservers: str) -> int:
    """Aggregate typed columns by carrier. Return the number of messages."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    from jobs import read_queue

    schema = "lap INT, carrier STRING, arr_delay DOUBLE"
    frame = read_queue(spark, TOPIC, nameservers=nameservers, schema=schema, format="json", columns=[])
    by_carrier = frame.groupBy("carrier").agg(F.count("lap").alias("flights"), F.avg("arr_delay"))
    return sum(row["flights"] for row in by_carrier.collect())


def sort(spark: SparkSession, nameservers: str) -> int:
    """Sort all bodies. Return their number."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    from jobs import read_queue

    seen = Observation()
    ordered = read_queue(spark, TOPIC, nameservers=nameservers, columns=["body"]).orderBy("body")
    ordered.observe(seen, F.count("body").alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def count_dataset(nameservers: str) -> int:
    """Count the bodies with Ray Data."""
    from jobs import read_dataset

    dataset = read_dataset(TOPIC, nameservers=nameservers, columns=["body"])
    counts = dataset.map_batches(_count, batch_format="pyarrow")
    return sum(batch["rows"].sum() for batch in counts.iter_batches(batch_format="numpy"))


def _count(batch: pa.Table) -> pa.Table:
    return pa.table({"rows": [len(batch["body"])], "bytes": [pc.sum(pc.binary_length(batch["body"]))]})


def executor_of(spark: SparkSession) -> int:
    """Return the PID of the JVM of the only executor: its Python workers are forked by a daemon."""
    pids = spark.sparkContext.parallelize([0], 1).map(lambda _: psutil.Process().parents()[1].pid)
    return int(pids.first())


def measure(name: str, read: Callable[[], int], messages: int, executor: int | None) -> Result:
    """Run one read. Raises BenchFailed if it does not return `messages`."""
    started = time.perf_counter()
    with sampled(executor) as peaks:
        found = read()
    if found != messages:
        raise BenchFailed(f"{name} read {found:,} of {messages:,} messages")
    peak_mib = {kind: size // MIB for kind, size in peaks.items()}
    return Result(name, found, round(time.perf_counter() - started, 1), peak_mib)


@contextmanager
def sampled(executor: int | None) -> Iterator[dict[str, int]]:
    """Yield the peaks of the memory by kind of process, which grow while the context is active."""
    peaks: dict[str, int] = {}
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            for kind, size in memory_now(executor).items():
                peaks[kind] = max(peaks.get(kind, 0), size)

    sampler = threading.Thread(target=sample, name="memory", daemon=True)
    sampler.start()
    try:
        yield peaks
    finally:
        over.set()
        sampler.join()


def memory_now(executor: int | None) -> dict[str, int]:
    """Return the resident memory in bytes of the executor, or of Ray's workers if `executor` is None."""
    if executor is not None:
        jvm = psutil.Process(executor)
        workers = jvm.children(recursive=True)
        return {"jvm": jvm.memory_info().rss, "python workers": _anonymous(workers)}
    children = psutil.Process().children(recursive=True)
    names = [(each, each.cmdline()[:1]) for each in children if each.status() != psutil.STATUS_ZOMBIE]
    return {"ray workers": _anonymous([each for each, name in names if name and name[0].startswith("ray::")])}


def _anonymous(processes: list[psutil.Process]) -> int:
    total = 0
    for process in processes:
        with suppress(OSError):  # it has exited
            total += anonymous_bytes(process.pid)
    return total


if __name__ == "__main__":
    sys.exit(main())
