"""RayMQ beside Apache RocketMQ 5.3.3: the same Java client on each, one alone on the machine at a time.

    uv run python -m benchmarks.versus_rocketmq [--load NAME] [--rounds 3] [--seconds 20]
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
from dataclasses import asdict, fields
from pathlib import Path

from benchmarks.load import Figures, Load, produce
from tests.compat.build import JavaKit, JavaMissing, java_kit
from tests.compat.peers import Peer
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ

LOADS = {
    "java-producer": Load(),
    "java-producer-1": Load(threads=1),
    "java-batch": Load(threads=8, batch=32),
    "java-1k": Load(size_bytes=1024),
    "java-16k": Load(size_bytes=16 * 1024),
}
SIDES = ("raymq", "rocketmq")
REPORTED = (
    "messages_per_s",
    "p50_ms",
    "p99_ms",
    "mean_ms",
    "broker_cpu_us_per_message",
    "producer_cpu_us_per_message",
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
    rounds = _measure(kit, options)
    report = _report(rounds, options)
    if options.json:
        print(json.dumps(report))
    else:
        _print_table(report)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.versus_rocketmq", description=__doc__.splitlines()[0])
    parser.add_argument("--load", choices=sorted(LOADS), default="java-producer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20, help="measured, after the warm-up")
    parser.add_argument(
        "--warmup", type=int, default=15, help="seconds; under 12 the Java broker is not at speed"
    )
    parser.add_argument("--flush", choices=("async", "sync"), default="async")
    parser.add_argument("--only", choices=SIDES, help="one side alone")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of a table")
    return parser.parse_args()


def _measure(kit: JavaKit, options: argparse.Namespace) -> Rounds:
    sides = (options.only,) if options.only else SIDES
    rounds: dict[str, list[Figures]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            figures = _run_alone(kit, side, options)
            rounds[side].append(figures)
            print(
                f"round {number + 1} {side:9} {figures.messages_per_s:10,.0f}/s"
                f"  p50 {figures.p50_ms:.3f} ms  p99 {figures.p99_ms:.3f} ms"
                f"  broker {figures.broker_cpu_us_per_message:.1f} µs a message"
                f"  producer {figures.producer_cpu_us_per_message:.1f} µs"
                f"  other work {figures.other_cores:.2f} cores",
                file=sys.stderr,
            )
    return rounds


def _run_alone(kit: JavaKit, side: str, options: argparse.Namespace) -> Figures:
    settings = {"flushDiskType": f"{options.flush.upper()}_FLUSH"}
    starts: Mapping[str, Callable[[Path], Peer]] = {
        "raymq": lambda root: RayMQ(root, settings),
        "rocketmq": lambda root: RocketMQ(kit, root, settings),
    }
    with tempfile.TemporaryDirectory(prefix=f"versus-{side}-") as root, starts[side](Path(root)) as peer:
        return produce(
            kit,
            peer.nameserver_address,
            peer.broker_address,
            peer.broker_pid,
            LOADS[options.load],
            warmup_s=options.warmup,
            measured_s=options.seconds,
            home=Path(root) / "client",
        )


def _report(rounds: Rounds, options: argparse.Namespace) -> dict[str, object]:
    medians = {side: _medians(figures) for side, figures in rounds.items()}
    report: dict[str, object] = {
        "name": f"versus-rocketmq {options.load}",
        "parameters": {
            **asdict(LOADS[options.load]),
            "flush": options.flush,
            "rounds": options.rounds,
            "seconds": options.seconds,
            "warmup_s": options.warmup,
        },
        "medians": medians,
        "rounds": {side: [asdict(figure) for figure in figures] for side, figures in rounds.items()},
    }
    if len(medians) == len(SIDES):
        ours, theirs = medians["raymq"], medians["rocketmq"]
        report["ratios"] = {key: ours[key] / theirs[key] for key in REPORTED if theirs[key]}
    return report


def _medians(figures: Sequence[Figures]) -> dict[str, float]:
    return {
        field.name: statistics.median(getattr(figure, field.name) for figure in figures)
        for field in fields(Figures)
    }


def _print_table(report: Mapping[str, object]) -> None:
    medians, ratios = report["medians"], report.get("ratios", {})
    assert isinstance(medians, dict)
    assert isinstance(ratios, dict)
    print(f"{report['name']}  {report['parameters']}")
    print(f"{'median of rounds':28}" + "".join(f"{side:>14}" for side in medians) + f"{'ours ÷ theirs':>16}")
    for key in REPORTED:
        row = "".join(f"{figures[key]:14,.3f}" for figures in medians.values())
        ratio = f"{ratios[key]:16.2f}" if key in ratios else ""
        print(f"{key:28}{row}{ratio}")


if __name__ == "__main__":
    sys.exit(main())
