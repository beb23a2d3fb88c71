"""Compare RayMQ's gateway and POP with RocketMQ's proxy and broker: run the same client on each, in turn.

    uv run python -m benchmarks.versus_proxy [--load NAME] [--rounds 3] [--seconds 20] [--warmup 15]
                                             [--messages 600000] [--without-ray] [--before DIR] [--json]

Without `--load` all loads run. `python-16`, `python-1` and `java-32` send with an SDK for gRPC;
`java-receive` receives and acks a backlog with the Java SDK; `java-pop` pops and acks one with the Java
client for remoting; `idle` compares sends of the Java client to this checkout, with an idle gateway in the
process of the broker, with those to the checkout in `--before`, and runs only with that option. Each run
starts with an empty store.

RocketMQ runs as a nameserver, a broker and a proxy, with its default settings and heaps of 1 GiB; RayMQ as
a topology of one broker and one gateway on Ray, and without Ray for `idle`. CPU time and memory are those
of the broker and of the proxy or gateway together. The order of the sides alternates from round to round;
the results are the medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import run_comparison
from benchmarks.goals import Case
from benchmarks.load import (
    CLIENT_JVM,
    GROUP,
    LOADS,
    TOPIC,
    Figures,
    Load,
    LoadFailed,
    run_load,
    run_program,
)  # fmt: skip
from benchmarks.proxy import SDK, RayMQWithGateway, RocketMQWithProxy, class_path
from benchmarks.raymq_on_ray import RayMQOnRay
from benchmarks.versus_report import Report, print_table, round_line
from cluster.client import Admin, Message, Producer
from store.message.group_config import SubscriptionGroupConfig
from tests.compat.build import CLIENT, JavaKit, java_kit, java_program
from tests.compat.peers import Deployment
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ

QUEUES = 8
SIZE_BYTES = 128
PYTHON_SDK = "rocketmq-python-client==5.1.2"
PROGRAMS = Path(__file__).parent
BATCH = 500

Side = Callable[[Path], Deployment]
"""Returns a deployment in a directory; nothing is started."""


@dataclass(frozen=True)
class ProxyLoad:
    """A load and the floor of the ratio of one figure; an SDK's program runs `operation` with `threads`."""

    figure: str
    floor: float
    operation: str = ""
    threads: int = 0


PROXY_LOADS: Mapping[str, ProxyLoad] = {
    "python-16": ProxyLoad("messages_per_s", 2.0, "python", 16),
    "java-32": ProxyLoad("messages_per_s", 1.0, "send", 32),
    "python-1": ProxyLoad("p50_ms", 0.6, "python", 1),
    "java-receive": ProxyLoad("messages_per_s", 1.0, "receive", 16),
    "java-pop": ProxyLoad("messages_per_s", 1.2),
    "idle": ProxyLoad("messages_per_s", 0.98),
}


def main() -> int:
    """Run the comparison and print its results. Return the exit code."""
    options = _options()
    return run_comparison(lambda: _compare(options), LoadFailed)


def _compare(options: argparse.Namespace) -> None:
    kit = java_kit()
    all_names = [name for name in PROXY_LOADS if name != "idle" or options.before]
    for name in [options.load] if options.load else all_names:
        _show(name, _measure(kit, name, options), as_json=options.json)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.versus_proxy", description=__doc__.splitlines()[0])
    parser.add_argument("--load", choices=list(PROXY_LOADS), help="run only this load (default: all loads)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20, help="duration of the measurement")
    parser.add_argument("--warmup", type=int, default=15, help="seconds of warm-up, except for java-pop")
    parser.add_argument("--messages", type=int, default=600_000, help="backlog of java-receive and java-pop")
    parser.add_argument("--before", type=Path, help="checkout of an earlier commit, for the load idle")
    parser.add_argument("--without-ray", action="store_true", help="run broker and gateway without Ray")
    parser.add_argument("--json", action="store_true", help="print one line of JSON per load")
    options = parser.parse_args()
    if options.load == "idle" and options.before is None:
        parser.error("--load idle needs --before DIR, a checkout of the commit to compare with")
    return options


def _measure(kit: JavaKit, name: str, options: argparse.Namespace) -> Report:
    sides = _sides(kit, name, options)
    rounds: dict[str, list[Figures]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(list(sides)):
            with tempfile.TemporaryDirectory(prefix=f"versus-{side}-") as directory:
                rounds[side].append(_run(kit, sides[side], name, options, Path(directory)))
            print(f"{name} round {number + 1} {side:9} {round_line(rounds[side][-1])}", file=sys.stderr)
    numbers = {"warmup": options.warmup, "seconds": options.seconds, "rounds": options.rounds}
    return Report(Case(name, "async"), "5.3.3", numbers, rounds, {}, "versus-proxy")


def _sides(kit: JavaKit, name: str, options: argparse.Namespace) -> Mapping[str, Side]:
    if name == "idle":
        return {
            "raymq": lambda root: RayMQ(root, options=("--gateway-port", "0")),
            "before": lambda root: RayMQ(root, checkout=options.before),
        }
    if name == "java-pop":
        return {
            "raymq": lambda root: RayMQ(root) if options.without_ray else RayMQOnRay(root, "async"),
            "rocketmq": lambda root: RocketMQ(kit, root),
        }

    def with_gateway(root: Path) -> Deployment:
        return RayMQWithGateway(root) if options.without_ray else RayMQOnRay(root, "async", has_gateway=True)

    return {
        "raymq": with_gateway,
        "rocketmq": lambda root: RocketMQWithProxy(kit, root),
    }


def _run(kit: JavaKit, side: Side, name: str, options: argparse.Namespace, root: Path) -> Figures:
    with side(root) as peer:
        return _run_load(kit, peer, name, options, root / "client")


def _run_load(kit: JavaKit, peer: Deployment, name: str, options: argparse.Namespace, home: Path) -> Figures:
    if isinstance(peer, RocketMQWithProxy | RayMQWithGateway | RayMQOnRay) and PROXY_LOADS[name].operation:
        return _run_sdk(peer, PROXY_LOADS[name], options, home)
    numbers = {"queues": QUEUES, "warmup": options.warmup, "seconds": options.seconds}
    if name == "java-pop":
        numbers["messages"] = options.messages
    load = LOADS["java-pop" if name == "java-pop" else "java-producer"]
    return run_load(
        kit, CLIENT, peer.nameserver_address, peer.broker_address, (peer.broker_pid,), load, numbers, home
    )


def _run_sdk(
    peer: RocketMQWithProxy | RayMQWithGateway | RayMQOnRay,
    load: ProxyLoad,
    options: argparse.Namespace,
    home: Path,
) -> Figures:
    with Admin(peer.nameserver_address) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
        if load.operation == "receive":
            _fill(admin, peer.nameserver_address, options.messages)
    numbers = (load.threads, SIZE_BYTES, options.warmup, options.seconds)
    arguments = [peer.gateway_address, TOPIC, *map(str, numbers)]
    servers = (peer.broker_pid, peer.gateway_pid)
    return run_program(_command(load.operation, arguments, home), home, servers, Load("", {}))


def _fill(admin: Admin, nameservers: str, messages: int) -> None:
    """Send a backlog, and commit offset 0 for the group: without it a group that pops begins at the end."""
    batch = [Message(TOPIC, b"x" * SIZE_BYTES)] * BATCH
    with Producer(nameservers) as producer:
        for _ in range(messages // BATCH):
            producer.send_batch(batch)
    admin.put_group(SubscriptionGroupConfig(group_name=GROUP))
    admin.commit_offsets(GROUP, dict.fromkeys(admin.committed_offsets(GROUP, TOPIC), 0))


def _command(operation: str, arguments: Sequence[str], home: Path) -> list[str]:
    if operation == "python":
        uv = shutil.which("uv")
        if uv is None:
            raise LoadFailed("uv is not on the PATH: install it to run the Python SDK in its own environment")
        isolated = ["run", "--no-project", "--isolated", "--python", "3.11", "--with", PYTHON_SDK]
        return [uv, *isolated, "python", str(PROGRAMS / "python_sdk_load.py"), *arguments]
    program = str(PROGRAMS / "SdkLoad.java")
    java = [str(java_program("java")), f"-Duser.home={home}", *CLIENT_JVM, "-cp", class_path(SDK)]
    return [*java, program, operation, *arguments]


def _show(name: str, report: Report, *, as_json: bool) -> None:
    load, ratio = PROXY_LOADS[name], report.ratios()[PROXY_LOADS[name].figure]
    is_reached = ratio <= load.floor if load.figure == "p50_ms" else ratio >= load.floor
    if as_json:
        goal = {"figure": load.figure, "ratio": ratio, "floor": load.floor, "reached": is_reached}
        print(json.dumps({**report.as_json(), **goal}), flush=True)
        return
    print_table(report)
    verdict = "reached" if is_reached else "missed"
    print(f"{name}: {load.figure} ours ÷ theirs {ratio:.2f}, floor {load.floor:g}: {verdict}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
