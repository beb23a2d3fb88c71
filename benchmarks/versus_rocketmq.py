"""RayMQ beside Apache RocketMQ 5.3.3: the same Java client on each, one alone on the machine at a time.

    uv run python -m benchmarks.versus_rocketmq [--load NAME | --load all] [--rounds 3] [--seconds 20]
                                                [--flush async|sync] [--only raymq|rocketmq] [--json]

Each run has a fresh store. RocketMQ has a process for the nameserver and one for the broker, whose heap is
1 GiB, with its defaults otherwise; RayMQ has one process for both. The order of the two changes from round
to round; figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.load import LOADS, Figures, run_load
from tests.compat.build import JavaKit, JavaMissing, java_kit
from tests.compat.peers import Peer
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ

ALL = "all"
QUEUES = 8
SIDES = ("raymq", "rocketmq")
REPORTED = (
    "messages_per_s",
    "p50_ms",
    "p99_ms",
    "mean_ms",
    "broker_cpu_us_per_message",
    "client_cpu_us_per_message",
    "broker_anonymous_mib",
    "other_cores",
)

Rounds = Mapping[str, Sequence[Figures]]


def main() -> int:
    """Measure, print, and give the exit code."""
    options = _options()
    try:
        kit = java_kit()
    except JavaMissing as missing:
        print(missing, file=sys.stderr)
        return 2
    for load in sorted(LOADS) if options.load == ALL else (options.load,):
        report = _report(load, _measure(kit, load, options), options)
        if options.json:
            print(json.dumps(report), flush=True)
        else:
            _print_table(report)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.versus_rocketmq", description=__doc__.splitlines()[0])
    parser.add_argument("--load", choices=(*sorted(LOADS), ALL), default="java-producer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20, help="measured, after the warm-up")
    parser.add_argument(
        "--warmup", type=int, default=15, help="seconds; under 12 the Java broker is not at speed"
    )
    parser.add_argument("--messages", type=int, help="how many messages java-push drains")
    parser.add_argument("--flush", choices=("async", "sync"), default="async")
    parser.add_argument("--only", choices=SIDES, help="one side alone")
    parser.add_argument("--json", action="store_true", help="one line of JSON a load instead of a table")
    return parser.parse_args()


def _numbers(options: argparse.Namespace) -> Mapping[str, int]:
    numbers = {"queues": QUEUES, "warmup": options.warmup, "seconds": options.seconds}
    return numbers if options.messages is None else {**numbers, "messages": options.messages}


def _measure(kit: JavaKit, load: str, options: argparse.Namespace) -> Rounds:
    sides = (options.only,) if options.only else SIDES
    rounds: dict[str, list[Figures]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            figures = _run_alone(kit, side, load, options)
            rounds[side].append(figures)
            print(f"round {number + 1} {side:9} {_line(figures)}", file=sys.stderr)
    return rounds


def _line(figures: Figures) -> str:
    times = ""
    if figures.p50_ms is not None and figures.p99_ms is not None:
        times = f"  p50 {figures.p50_ms:.3f} ms  p99 {figures.p99_ms:.3f} ms"
    return (
        f"{figures.messages_per_s:10,.0f}/s{times}"
        f"  broker {figures.broker_cpu_us_per_message:.1f} µs a message"
        f"  client {figures.client_cpu_us_per_message:.1f} µs"
        f"  other work {figures.other_cores:.2f} cores"
    )


def _run_alone(kit: JavaKit, side: str, load: str, options: argparse.Namespace) -> Figures:
    settings = {"flushDiskType": f"{options.flush.upper()}_FLUSH"}
    starts: Mapping[str, Callable[[Path], Peer]] = {
        "raymq": lambda root: RayMQ(root, settings),
        "rocketmq": lambda root: RocketMQ(kit, root, settings),
    }
    with tempfile.TemporaryDirectory(prefix=f"versus-{side}-") as root, starts[side](Path(root)) as peer:
        return run_load(
            kit,
            peer.nameserver_address,
            peer.broker_address,
            peer.broker_pid,
            LOADS[load],
            _numbers(options),
            Path(root) / "client",
        )


def _report(load: str, rounds: Rounds, options: argparse.Namespace) -> dict[str, object]:
    medians = {side: _medians(figures) for side, figures in rounds.items()}
    report: dict[str, object] = {
        "name": f"versus-rocketmq {load}",
        "parameters": {
            "program": LOADS[load].program,
            **LOADS[load].numbers,
            **_numbers(options),
            "flush": options.flush,
            "rounds": options.rounds,
        },
        "medians": medians,
        "rounds": {side: [asdict(figure) for figure in figures] for side, figures in rounds.items()},
    }
    if len(medians) == len(SIDES):
        ours, theirs = medians["raymq"], medians["rocketmq"]
        report["ratios"] = {key: ours[key] / theirs[key] for key in REPORTED if theirs.get(key)}
    return report


def _medians(figures: Sequence[Figures]) -> dict[str, float]:
    """Of what this load measures."""
    rows = [asdict(figure) for figure in figures]
    measured = [key for key, value in rows[0].items() if value is not None]
    return {key: statistics.median(row[key] for row in rows) for key in measured}


def _print_table(report: Mapping[str, object]) -> None:
    medians, ratios = report["medians"], report.get("ratios", {})
    assert isinstance(medians, dict)
    assert isinstance(ratios, dict)
    print(f"{report['name']}  {report['parameters']}")
    print(f"{'median of rounds':28}" + "".join(f"{side:>14}" for side in medians) + f"{'ours ÷ theirs':>16}")
    for key in REPORTED:
        if not all(key in figures for figures in medians.values()):
            continue
        row = "".join(f"{figures[key]:14,.3f}" for figures in medians.values())
        ratio = f"{ratios[key]:16.2f}" if key in ratios else ""
        print(f"{key:28}{row}{ratio}")


if __name__ == "__main__":
    sys.exit(main())
