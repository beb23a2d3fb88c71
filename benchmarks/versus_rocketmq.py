"""Compare RayMQ with Apache RocketMQ: run the same Java client on each, one after the other.

    uv run python -m benchmarks.versus_rocketmq [--load NAME [--flush async|sync]] [--rounds 3] [--seconds 20]
                                                [--rocketmq 5.3.3|5.5.0] [--without-ray] [--pair async|sync]
                                                [--only raymq|rocketmq] [--access-control] [--json]
    uv run python -m benchmarks.versus_rocketmq --raft [--rounds 3] [--seconds 20] [--flush async|sync]

Without `--load` all loads of `benchmarks.goals` run, and a table shows each figure with its goals, floor and
aim; among the loads are two of the Python client, which run on RayMQ alone, without Ray. Each run starts
with an empty store. RocketMQ runs as a nameserver and a broker process with its default settings,
except for a heap of 1 GiB. RayMQ runs as a topology of one broker on Ray. `--rocketmq` is the release of
RocketMQ and of the Java client that both sides use. `--access-control` measures RayMQ alone, without Ray,
with a producer that signs its requests as a user with policies. With `--pair` each side is a master with one
slave on the same machine; `sync` is RocketMQ's SYNC_MASTER with two in-sync replicas. The order of the two
sides alternates from round to round; the results are the medians of the rounds. `--raft` compares three
replicas that elect their master (`benchmarks.raft_groups`) under the load java-producer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks import raft_groups
from benchmarks.access_control import USER_OPTIONS, protected_raymq
from benchmarks.comparison import run_comparison
from benchmarks.goals import CASES, PYTHON_LOADS, Case, Measured, goal_results
from benchmarks.load import LOADS, Figures, run_load
from benchmarks.pairs import RocketMQPair, await_slave
from benchmarks.raymq_on_ray import RayMQOnRay
from benchmarks.versus_report import Report, print_goals, print_table, round_line
from cluster.lab.bench.options import BenchOptions
from cluster.lab.bench.registry import run_bench
from cluster.lab.bench.result import as_json
from tests.compat.build import RELEASES, JavaKit, java_kit
from tests.compat.peers import Deployment
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ

QUEUES = 8
SIDES = ("raymq", "rocketmq")


def main() -> int:
    """Run the comparison and print its results. Return the exit code."""
    options = _options()
    run = _run_raft if options.raft else _run_all
    return run_comparison(lambda: run(java_kit(), options))


def _run_all(kit: JavaKit, options: argparse.Namespace) -> None:
    measured: dict[Case, Measured] = {}
    goals = [case for case in CASES if case.pair == options.pair]
    for case in goals if options.load is None else [Case(options.load, options.flush, options.pair)]:
        if case.load in PYTHON_LOADS:
            measured[case] = _measure_python(case, options)
            continue
        report = _measure(kit, case, options)
        measured[case] = Measured(report.medians().get("raymq", {}), report.ratios())
        if options.json:
            print(json.dumps(report.as_json()), flush=True)
        else:
            print_table(report)
    print_goals(goal_results(measured), as_json=options.json)


def _run_raft(kit: JavaKit, options: argparse.Namespace) -> None:
    case = Case("java-producer", options.flush, "")
    rates: dict[str, list[float]] = {side: [] for side in raft_groups.SIDES}
    for number in range(options.rounds):
        for side in raft_groups.SIDES if number % 2 == 0 else reversed(raft_groups.SIDES):
            with tempfile.TemporaryDirectory(prefix=f"raft-{side}-") as root:
                profile = RELEASES[options.rocketmq].server
                with raft_groups.peer_of(side, kit, Path(root), case.flush, profile) as peer:
                    figures = _run(kit, peer, case, options, Path(root))
            rates[side].append(figures.messages_per_s)
            print(f"round {number + 1} {side:12} {round_line(figures)}", file=sys.stderr, flush=True)
    raft_groups.print_rates(rates, print)


def _measure_python(case: Case, options: argparse.Namespace) -> Measured:
    if options.only == "rocketmq" or options.access_control:
        return Measured({})
    results = run_bench(
        case.load, BenchOptions(seconds=options.seconds, runs=options.rounds, flush=case.flush)
    )
    print(as_json(case.load, results), file=sys.stdout if options.json else sys.stderr, flush=True)
    return Measured(results[0].figures())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.versus_rocketmq", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--load", choices=sorted({*LOADS, *PYTHON_LOADS}), help="run only this load (default: all loads)"
    )
    parser.add_argument("--flush", choices=("async", "sync"), default="async", help="flush mode for --load")
    parser.add_argument(
        "--rocketmq", choices=RELEASES, default="5.3.3", help="release of RocketMQ and of the Java client"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=int, default=20, help="duration of the measurement, after the warm-up"
    )
    parser.add_argument(
        "--warmup",
        type=int,
        default=15,
        help="seconds of warm-up; below 12 the Java broker does not reach its full speed",
    )
    parser.add_argument("--messages", type=int, help="number of messages that java-push consumes")
    parser.add_argument(
        "--without-ray", action="store_true", help="run RayMQ's services in one process, without Ray"
    )
    parser.add_argument(
        "--pair", choices=("async", "sync"), default="", help="compare masters with one slave each"
    )
    parser.add_argument("--raft", action="store_true", help="compare three replicas that elect their master")
    parser.add_argument("--only", choices=SIDES, help="run only one side")
    parser.add_argument(
        "--access-control", action="store_true", help="run only RayMQ, without Ray; the producers sign"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one line of JSON per load instead of a table"
    )
    options = parser.parse_args()
    if options.pair and (options.without_ray or options.access_control or options.load in PYTHON_LOADS):
        parser.error("--pair needs a Java load, with Ray and without access control")
    if options.access_control:
        options.only, options.without_ray = "raymq", True
    return options


def _measure(kit: JavaKit, case: Case, options: argparse.Namespace) -> Report:
    sides = (options.only,) if options.only else SIDES
    rounds: dict[str, list[Figures]] = {side: [] for side in sides}
    others: dict[str, float] = {}
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            with tempfile.TemporaryDirectory(prefix=f"versus-{side}-") as root:
                peer = _peer(kit, side, Path(root), case, options)
                with peer:
                    if case.pair:
                        await_slave(peer.broker_address)
                    rounds[side].append(_run(kit, peer, case, options, Path(root)))
                    if isinstance(peer, RayMQOnRay):
                        others = dict(peer.other_anonymous_mib())
            print(f"round {number + 1} {side:9} {round_line(rounds[side][-1])}", file=sys.stderr)
    numbers = {**_numbers(options), "rounds": options.rounds}
    return Report(case, options.rocketmq, numbers, rounds, others)


def _peer(kit: JavaKit, side: str, root: Path, case: Case, options: argparse.Namespace) -> Deployment:
    settings = {"flushDiskType": f"{case.flush.upper()}_FLUSH"}
    profile = RELEASES[options.rocketmq].server
    if side == "rocketmq" and case.pair:
        return RocketMQPair(kit, root, settings, case.pair, profile)
    if side == "rocketmq":
        return RocketMQ(kit, root, settings, profile=profile)
    if options.access_control:
        return protected_raymq(root, settings)
    if options.without_ray:
        return RayMQ(root, settings)
    return RayMQOnRay(root, case.flush, case.pair)


def _run(kit: JavaKit, peer: Deployment, case: Case, options: argparse.Namespace, root: Path) -> Figures:
    return run_load(
        kit,
        RELEASES[options.rocketmq].client,
        peer.nameserver_address,
        peer.broker_address,
        (peer.broker_pid,),
        LOADS[case.load],
        _numbers(options),
        root / "client",
        jvm=USER_OPTIONS if options.access_control else (),
    )


def _numbers(options: argparse.Namespace) -> Mapping[str, int]:
    numbers = {"queues": QUEUES, "warmup": options.warmup, "seconds": options.seconds}
    return numbers if options.messages is None else {**numbers, "messages": options.messages}


if __name__ == "__main__":
    sys.exit(main())
