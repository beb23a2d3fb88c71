"""How far a lake is behind its topic, and what it takes from a producer.

    uv run python -m benchmarks.internals.lake_freshness [--rate 20000] [--seconds 60] [--rounds 1] [--json]

For each `freshness_s`, a cluster of one broker and one lake on Ray gets messages of 128 bytes at `--rate`,
and the age of the oldest message that is not in the table is read twice a second. The greatest age after the
first two rounds of the lake counts. Then RocketMQ's Java producer runs with 32 threads against a cluster with
a lake and one without; the figure is the ratio of the rates, with the CPU time of the lake.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pyarrow as pa

from benchmarks.comparison import run_comparison
from benchmarks.load import LOADS, TOPIC, LoadFailed, run_load
from benchmarks.processes import cpu_seconds
from benchmarks.raymq_on_ray import RayMQOnRay, TopologyFailed
from cluster.client import Admin, Producer
from jobs.lake.catalogs import lake_settings, open_catalog
from jobs.lake.lake_table import LakeTable
from jobs.lake.status import lake_status
from jobs.reading.describe import describe_topic
from tests.compat.build import CLIENT, JavaKit, java_kit
from tests.eventually import eventually

LIMITS_S = {30: 60, 5: 10}
"""Greatest age of a message that is not in the table, by `freshness_s`."""
FLOOR_OF_RATE = 0.85
QUEUES = 8
BODY_BYTES = 128
STEP_S = 0.1
LOOK_S = 0.5


def main() -> int:
    """Run the measurements and print their results. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.internals.lake_freshness", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rate", type=int, default=20_000, help="messages per second")
    parser.add_argument("--seconds", type=int, default=90, help="duration of the load for each freshness_s")
    parser.add_argument(
        "--rounds", type=int, default=1, help="runs of the Java producer with and without lake"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table")
    options = parser.parse_args()
    return run_comparison(lambda: _measure(java_kit(), options), TopologyFailed, LoadFailed)


def _measure(kit: JavaKit, options: argparse.Namespace) -> None:
    found: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        found[name] = value
        # at once, because a later measurement may fail
        print(f"{name:40} {value:10.2f}", file=sys.stderr if options.json else sys.stdout, flush=True)

    for each in LIMITS_S:
        note(f"s behind, freshness_s {each}", _behind(each, options))
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(options.rounds):
        for has_lake in (False, True) if number % 2 == 0 else (True, False):
            rates[has_lake].append(_sends(kit, has_lake, options))
    note("sends with a lake ÷ without", statistics.median(rates[True]) / statistics.median(rates[False]))
    if options.json:
        limits = {"limits_s": LIMITS_S, "floor": FLOOR_OF_RATE}
        print(json.dumps({"name": "lake-freshness", "rates": list(rates.values()), **found, **limits}))


def _behind(freshness_s: int, options: argparse.Namespace) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="lake-") as root,
        RayMQOnRay(Path(root), "async", lake_freshness_s=freshness_s) as cluster,
    ):
        _create(cluster.nameserver_address)
        ended = threading.Event()
        sender = threading.Thread(target=_send, args=(cluster.nameserver_address, options.rate, ended))
        sender.start()
        try:
            catalog = open_catalog(lake_settings(str(cluster.warehouse), cluster.warehouse))
            table = eventually(lambda: LakeTable.find(catalog, "raymq", TOPIC), "a table")
            assert table is not None
            ages: list[float] = []
            begin = time.monotonic()
            while time.monotonic() < begin + options.seconds:
                time.sleep(LOOK_S)
                table.refresh()
                queues = describe_topic(cluster.nameserver_address, TOPIC)
                age = lake_status(table, queues, datetime.now(UTC)).seconds_behind
                if age is not None and time.monotonic() > begin + 2 * freshness_s:
                    ages.append(age)
        finally:
            ended.set()
            sender.join()
        print(f"freshness_s {freshness_s}: {table.state().offsets} messages", file=sys.stderr)
        return max(ages)


def _create(nameservers: str) -> None:
    with Admin(nameservers) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)


def _send(nameservers: str, rate: int, ended: threading.Event) -> None:
    rows = pa.table({"body": pa.array([b"x" * BODY_BYTES] * int(rate * STEP_S), pa.binary())})
    with Producer(nameservers, "lake_producer") as producer:
        due = time.monotonic()
        while not ended.is_set():
            producer.send_table(TOPIC, rows)
            due += STEP_S
            ended.wait(max(due - time.monotonic(), 0))


def _sends(kit: JavaKit, has_lake: bool, options: argparse.Namespace) -> float:
    freshness_s = 5 if has_lake else None
    with (
        tempfile.TemporaryDirectory(prefix="lake-") as root,
        RayMQOnRay(Path(root), "async", lake_freshness_s=freshness_s) as cluster,
    ):
        numbers = {"queues": QUEUES, "warmup": 12, "seconds": 20}
        lakes = [pid for name, pid in cluster.actor_pids.items() if name.startswith("lake")]
        before = sum(map(cpu_seconds, lakes))
        figures = run_load(
            kit, CLIENT, cluster.nameserver_address, cluster.broker_address, (cluster.broker_pid,),
            LOADS["java-producer"], numbers, Path(root) / "client",
        )  # fmt: skip
        try:
            spent = f"{sum(map(cpu_seconds, lakes)) - before:.1f} s"
        except psutil.NoSuchProcess:
            spent = "unknown, because its process has ended"
        print(
            f"lake {has_lake}: {figures.messages_per_s:,.0f} messages/s, CPU of the lake {spent},"
            f" of other processes {figures.other_cores:.2f} cores",
            file=sys.stderr,
        )
        return figures.messages_per_s


if __name__ == "__main__":
    sys.exit(main())
