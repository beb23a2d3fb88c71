"""What a second broker costs on the same machine, and what an idle cluster costs.

    uv run python -m benchmarks.two_brokers [--rounds 3] [--seconds 10] [--warmup 10] [--json]

Each round starts a cluster of one broker and one of two brokers on Ray, in alternating order, and runs
RocketMQ's Java producer with 32 threads and with one thread against each; a topic has 8 queues in all. The
CPU time of the idle cluster is measured before the loads: that of RayMQ's actors, and that of all processes
of the Ray session. An actor of Ray that does nothing uses some 0.4 % of a core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.comparison import run_comparison
from benchmarks.load import LOADS, TOPIC, Figures, LoadFailed, run_load
from benchmarks.processes import cpu_seconds
from benchmarks.raymq_on_ray import RayMQOnRay, TopologyFailed
from cluster.client import Admin
from tests.compat.build import CLIENT, JavaKit, java_kit

QUEUES = 8
COUNTS = (1, 2)
IDLE_S = 20
FLOOR_OF_RATE, LIMIT_OF_LATENCY = 0.85, 1.2


def main() -> int:
    """Run the comparison and print its results. Return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.two_brokers", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="duration of each load, after the warm-up")
    parser.add_argument("--warmup", type=int, default=10, help="seconds of warm-up of each load")
    parser.add_argument("--flush", choices=("async", "sync"), default="async")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table")
    options = parser.parse_args()
    return run_comparison(lambda: _compare(java_kit(), options), TopologyFailed, LoadFailed)


def _compare(kit: JavaKit, options: argparse.Namespace) -> None:
    found: dict[str, list[float]] = {}
    for number in range(options.rounds):
        for count in COUNTS if number % 2 == 0 else COUNTS[::-1]:
            with (
                tempfile.TemporaryDirectory(prefix="two-brokers-") as root,
                RayMQOnRay(Path(root), options.flush, brokers=count) as cluster,
            ):
                for name, value in _figures(kit, cluster, count, options, Path(root)).items():
                    found.setdefault(name, []).append(value)
                    print(f"round {number + 1} {name:28} {value:12,.2f}", file=sys.stderr)
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratios = {
        "rate, two brokers ÷ one": medians["messages/s of 2"] / medians["messages/s of 1"],
        "p50 of one sender, two brokers ÷ one": medians["p50 ms of 2"] / medians["p50 ms of 1"],
    }
    report = {"floor": FLOOR_OF_RATE, "limit": LIMIT_OF_LATENCY, "medians": medians, "ratios": ratios}
    if options.json:
        print(json.dumps({"name": "two-brokers", "rounds": found, **report}))
        return
    for name, value in (*sorted(medians.items()), *ratios.items()):
        print(f"{name:40} {value:12,.2f}")


def _figures(
    kit: JavaKit, cluster: RayMQOnRay, count: int, options: argparse.Namespace, root: Path
) -> Mapping[str, float]:
    found = _idle(cluster, count)
    with Admin(cluster.nameserver_address) as admin:
        admin.create_topic(TOPIC, queues=QUEUES // count)
    many = _load(kit, cluster, "java-producer", options, root)
    one = _load(kit, cluster, "java-producer-1", options, root)
    assert one.p50_ms is not None
    of_load = {"messages/s": many.messages_per_s, "CPU us/message": many.broker_cpu_us_per_message}
    found |= {f"{name} of {count}": value for name, value in of_load.items()}
    return {**found, f"p50 ms of {count}": one.p50_ms}


def _load(kit: JavaKit, cluster: RayMQOnRay, load: str, options: argparse.Namespace, root: Path) -> Figures:
    numbers = {"queues": QUEUES, "warmup": options.warmup, "seconds": options.seconds}
    brokers = [pid for name, pid in cluster.actor_pids.items() if name.startswith("broker-")]
    return run_load(kit, CLIENT, cluster.nameserver_address, "", brokers, LOADS[load], numbers, root / load)


def _idle(cluster: RayMQOnRay, count: int) -> dict[str, float]:
    """Return the CPU time of the idle cluster, in percent of a core."""
    actors = list(cluster.actor_pids.values())
    everything = cluster.ray_pids
    time.sleep(IDLE_S / 4)  # the start has ended
    before = {pid: cpu_seconds(pid) for pid in everything}
    time.sleep(IDLE_S)
    spent = {pid: (cpu_seconds(pid) - before[pid]) * 100 / IDLE_S for pid in everything}
    return {
        f"idle actors, % of {count}": sum(spent[pid] for pid in actors),
        f"idle with Ray, % of {count}": sum(spent.values()),
    }


if __name__ == "__main__":
    sys.exit(main())
