"""One load on one broker: a program of the Java client in its own process, and what it cost the broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from cluster.bench.memory import anonymous_bytes
from tests.compat.build import JavaKit
from tests.compat.processes import Program

CLIENT_JVM = ("-Xms1g", "-Xmx1g")
PREPARE_TIMEOUT_S = 300
MEASURE_TIMEOUT_S = 900
MIB = 1024 * 1024


@dataclass(frozen=True)
class Load:
    """A program (`tests/compat/java/client`) and the numbers that it is told."""

    program: str
    numbers: Mapping[str, int]


LOADS: Mapping[str, Load] = {
    "java-producer": Load("LoadProducer", {"threads": 32, "size": 128}),
    "java-producer-1": Load("LoadProducer", {"threads": 1, "size": 128}),
    "java-batch": Load("LoadProducer", {"threads": 8, "batch": 32, "size": 128}),
    "java-1k": Load("LoadProducer", {"threads": 32, "size": 1024}),
    "java-16k": Load("LoadProducer", {"threads": 32, "size": 16 * 1024}),
    "java-push": Load("LoadConsumer", {"messages": 5_000_000, "size": 128}),
    "java-end-to-end": Load("LoadEndToEnd", {"rate": 1000, "size": 128}),
}


@dataclass(frozen=True)
class Figures:
    """What one run gave; times in milliseconds, as the client saw them, where the load measures any."""

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
    """Cores that were busy with neither broker nor client: what else ran, and the kernel's own work."""


class LoadFailed(Exception):
    """Some messages failed or are missing: the figures of the others mean nothing."""


def run_load(
    kit: JavaKit,
    profile: str,
    nameserver: str,
    broker: str,
    broker_pid: int,
    load: Load,
    numbers: Mapping[str, int],
    home: Path,
) -> Figures:
    """Run the load's program against the broker at `broker` and give its figures.

    `profile` is that of the Java client. `numbers` are added to the load's own: `warmup` and `seconds` of the
    measured time among them.

    Raises:
        LoadFailed: a message failed or never came.
        ProgramFailed: the program did not run to its end.
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
        jvm=CLIENT_JVM,
    )
    with Program(command, home / "client.log") as client:
        client.wait_for("MEASURING", PREPARE_TIMEOUT_S)
        before = _cpu_spent(broker_pid, client.pid)
        line = client.wait_for('{"messagesPerSecond"', MEASURE_TIMEOUT_S)
        spent = _cpu_spent(broker_pid, client.pid).since(before)
    said = json.loads(line)
    _check(said, load)
    return Figures(
        messages_per_s=said["messagesPerSecond"],
        p50_ms=said.get("p50Ms"),
        p99_ms=said.get("p99Ms"),
        mean_ms=said.get("meanMs"),
        max_ms=said.get("maxMs"),
        messages=said["messages"],
        seconds=said["seconds"],
        broker_cpu_us_per_message=spent.broker_s / said["messages"] * 1e6,
        client_cpu_us_per_message=spent.client_s / said["messages"] * 1e6,
        broker_anonymous_mib=anonymous_bytes(broker_pid) / MIB,
        other_cores=(spent.machine_s - spent.broker_s - spent.client_s) / said["seconds"],
    )


def _check(said: Mapping[str, Any], load: Load) -> None:
    if said.get("failed") or said.get("notOk"):
        raise LoadFailed(
            f"{said['failed']} sends failed, {said['notOk']} were not SEND_OK: {said['firstError']}"
        )
    if said["messages"] < said.get("sent", 0):
        raise LoadFailed(f"{said['sent']:,} messages were sent, {said['messages']:,} came")
    if "bytes" in said and said["bytes"] != said["messages"] * load.numbers["size"]:
        raise LoadFailed(f"{said['messages']:,} messages came with {said['bytes']:,} bytes of bodies")


@dataclass(frozen=True)
class _CpuSpent:
    """CPU time so far, in seconds."""

    machine_s: float
    broker_s: float
    client_s: float

    def since(self, before: _CpuSpent) -> _CpuSpent:
        return _CpuSpent(
            self.machine_s - before.machine_s,
            self.broker_s - before.broker_s,
            self.client_s - before.client_s,
        )


def _cpu_spent(broker_pid: int, client_pid: int) -> _CpuSpent:
    machine = psutil.cpu_times()
    busy_s = sum(machine) - machine.idle - machine.iowait
    return _CpuSpent(busy_s, _cpu_s(broker_pid), _cpu_s(client_pid))


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
