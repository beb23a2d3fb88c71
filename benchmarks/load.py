"""Run one load on one broker with a program of the Java client, and measure throughput, latency and CPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

from actors.transport.clients.blocking import BlockingConnection
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from benchmarks.processes import anonymous_bytes, cpu_seconds
from cluster.client import Admin
from tests.compat.build import JavaKit
from tests.compat.processes import Program

TOPIC, GROUP = "LoadTest", "benchmark_consumer"
CLIENT_JVM = ("-Xms1g", "-Xmx1g")
PREPARE_TIMEOUT_S = 300
MEASURE_TIMEOUT_S = 900
REQUEST_TIMEOUT_MS = 10_000
MIB = 1024 * 1024


@dataclass(frozen=True)
class Load:
    """A program in `tests/compat/java/client` and its numeric arguments."""

    program: str
    numbers: Mapping[str, int]


LOADS: Mapping[str, Load] = {
    "java-producer": Load("LoadProducer", {"threads": 32, "size": 128}),
    "java-producer-1": Load("LoadProducer", {"threads": 1, "size": 128}),
    "java-batch": Load("LoadProducer", {"threads": 8, "batch": 32, "size": 128}),
    "java-1k": Load("LoadProducer", {"threads": 32, "size": 1024}),
    "java-16k": Load("LoadProducer", {"threads": 32, "size": 16 * 1024}),
    "java-push": Load("LoadConsumer", {"messages": 5_000_000, "size": 128}),
    "java-ordered": Load("LoadConsumer", {"messages": 5_000_000, "size": 128, "ordered": 1}),
    "java-pop": Load("LoadConsumer", {"messages": 1_000_000, "size": 128, "pop": 1}),
    "java-transactions": Load("LoadProducer", {"threads": 16, "size": 128, "transaction": 1}),
    "java-end-to-end": Load("LoadEndToEnd", {"rate": 1000, "size": 128}),
}


@dataclass(frozen=True)
class Figures:
    """The results of one run.

    Latencies are those seen by the client; None if the load does not measure them.
    """

    messages_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    mean_ms: float | None
    max_ms: float | None
    messages: int
    seconds: float
    broker_cpu_us_per_message: float
    client_cpu_us_per_message: float
    broker_anonymous_mib: float
    other_cores: float
    """Average number of cores used by neither broker nor client: other processes and the kernel."""
    send_p50_ms: float | None = None
    """Of the sends; the other latencies of a load with a consumer are those from send to listener."""
    turns_per_s: float | None = None
    """Turns of the broker's event loop; None for RocketMQ, which has none."""
    messages_per_turn: float | None = None


class LoadFailed(Exception):
    """Messages failed or are missing, so the results of the run are not valid."""


def run_load(
    kit: JavaKit,
    profile: str,
    nameserver: str,
    broker: str,
    broker_pids: Sequence[int],
    load: Load,
    numbers: Mapping[str, int],
    home: Path,
    jvm: Sequence[str] = (),
) -> Figures:
    """Run the load's program against the broker at `broker` and return its results.

    Without `broker`, the topic must exist, and the turns of the brokers are not counted.

    `profile` is the Maven profile of the Java client, `jvm` are further options of its JVM. `numbers` are
    added to the arguments of the load; among them are `warmup` and `seconds`, the durations of the warm-up
    and of the measurement.

    Raises:
        LoadFailed: A message failed or was not received.
        ProgramFailed: The program did not finish.
    """
    arguments: Mapping[str, object] = {
        "namesrv": nameserver,
        "broker": broker,
        **load.numbers,
        **numbers,
    }
    command = kit.command(
        f"compat.{load.program}",
        *(f"{key}={value}" for key, value in arguments.items()),
        profile=profile,
        home=home,
        jvm=(*CLIENT_JVM, *jvm),
    )
    if load.numbers.get("pop"):
        _set_pop_mode(nameserver, broker, numbers["queues"])
    return run_program(command, home, broker_pids, load, broker)


def _set_pop_mode(nameserver: str, broker: str, queues: int) -> None:
    with Admin(nameserver) as admin:
        admin.create_topic(TOPIC, queues=queues)
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0}
    request = RemotingCommand(RequestCode.SET_MESSAGE_REQUEST_MODE, body=orjson.dumps(mode))
    with BlockingConnection(broker, REQUEST_TIMEOUT_MS) as connection:
        response = connection.exchange(request)
    if response.code != ResponseCode.SUCCESS:
        raise LoadFailed(f"the broker refused the request mode POP: {response.remark}")


def run_program(
    command: Sequence[str], home: Path, servers: Sequence[int], load: Load, broker: str = ""
) -> Figures:
    """Run a program that prints MEASURING and then its results, and return them.

    `servers` are the PIDs of the broker and of what stands before it; their CPU time and memory are added.
    `broker` is the address of the broker whose turns are counted; empty to count none.

    Raises:
        LoadFailed: A message failed or was not received.
        ProgramFailed: The program did not finish.
    """
    with Program(command, home / "client.log") as client:
        client.wait_for("MEASURING", PREPARE_TIMEOUT_S)
        turns_before, before = _turns(broker), _cpu_spent(servers, client.pid)
        line = client.wait_for('{"messagesPerSecond"', MEASURE_TIMEOUT_S)
        spent = _cpu_spent(servers, client.pid).since(before)
        turns = _turns(broker) - turns_before
    output = json.loads(line)
    _check(output, load)
    return Figures(
        messages_per_s=output["messagesPerSecond"],
        p50_ms=output.get("p50Ms"),
        p99_ms=output.get("p99Ms"),
        mean_ms=output.get("meanMs"),
        max_ms=output.get("maxMs"),
        send_p50_ms=output.get("sendP50Ms"),
        messages=output["messages"],
        seconds=output["seconds"],
        broker_cpu_us_per_message=spent.broker_s / output["messages"] * 1e6,
        client_cpu_us_per_message=spent.client_s / output["messages"] * 1e6,
        broker_anonymous_mib=sum(anonymous_bytes(pid) for pid in servers) / MIB,
        other_cores=(spent.machine_s - spent.broker_s - spent.client_s) / output["seconds"],
        turns_per_s=turns / output["seconds"] if turns else None,
        messages_per_turn=output["messages"] / turns if turns else None,
    )


def _turns(broker: str) -> int:
    """Return the number of turns of the broker at this address; 0 if the broker counts none."""
    if not broker:
        return 0
    with BlockingConnection(broker, REQUEST_TIMEOUT_MS) as connection:
        response = connection.exchange(RemotingCommand(RayMQRequestCode.DESCRIBE_BROKER))
    return int(orjson.loads(response.body).get("turns", 0)) if response.code == ResponseCode.SUCCESS else 0


def _check(output: Mapping[str, Any], load: Load) -> None:
    if output.get("failed") or output.get("notOk"):
        raise LoadFailed(
            f"{output['failed']} sends failed, {output['notOk']} were not SEND_OK: {output['firstError']}"
        )
    if output["messages"] < output.get("sent", 0):
        raise LoadFailed(f"{output['sent']:,} messages were sent, but {output['messages']:,} were received")
    if "bytes" in output and output["bytes"] != output["messages"] * load.numbers["size"]:
        raise LoadFailed(
            f"{output['messages']:,} messages were received with {output['bytes']:,} bytes of bodies,"
            f" instead of {load.numbers['size']:,} bytes each"
        )


@dataclass(frozen=True)
class _CpuSpent:
    """CPU time used since the start of the machine or process, in seconds."""

    machine_s: float
    broker_s: float
    client_s: float

    def since(self, before: _CpuSpent) -> _CpuSpent:
        return _CpuSpent(
            self.machine_s - before.machine_s,
            self.broker_s - before.broker_s,
            self.client_s - before.client_s,
        )


def _cpu_spent(servers: Sequence[int], client_pid: int) -> _CpuSpent:
    machine = psutil.cpu_times()
    busy_s = sum(machine) - machine.idle - machine.iowait
    client = psutil.Process(client_pid)
    clients = [client.pid, *(child.pid for child in client.children(recursive=True))]
    return _CpuSpent(busy_s, sum(map(cpu_seconds, servers)), sum(map(cpu_seconds, clients)))
