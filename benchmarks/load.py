"""One load on one broker: RocketMQ's Java producer in a process of its own, and what it cost the broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.compat.build import CLIENT, JavaKit
from tests.compat.processes import Program

PRODUCER_JVM = ("-Xms1g", "-Xmx1g")
START_ALLOWANCE_S = 60


@dataclass(frozen=True)
class Load:
    """What the producer sends: `threads` senders, messages of `size_bytes`, `batch` of them a send."""

    threads: int = 32
    size_bytes: int = 128
    batch: int = 1
    queues: int = 8


@dataclass(frozen=True)
class Figures:
    """What one run gave; times of a send in milliseconds, as the client saw them."""

    messages_per_s: float
    p50_ms: float
    p99_ms: float
    mean_ms: float
    max_ms: float
    messages: int
    seconds: float
    broker_cpu_us_per_message: float
    producer_cpu_us_per_message: float
    broker_anonymous_mib: float
    other_cores: float
    """Cores that were busy with neither broker nor producer: what else ran, and the kernel's own work."""


class LoadFailed(Exception):
    """Some sends failed: the figures of the others mean nothing."""


def produce(
    kit: JavaKit,
    nameserver: str,
    broker: str,
    broker_pid: int,
    load: Load,
    *,
    warmup_s: int,
    measured_s: int,
    home: Path,
) -> Figures:
    """Run the producer against the broker at `broker` and give its figures.

    Raises:
        LoadFailed: a send failed, or was not SEND_OK.
        ProgramFailed: the producer did not run to its end.
    """
    arguments: Mapping[str, object] = {
        "namesrv": nameserver,
        "broker": broker,
        "threads": load.threads,
        "size": load.size_bytes,
        "batch": load.batch,
        "queues": load.queues,
        "warmup": warmup_s,
        "seconds": measured_s,
    }
    command = kit.command(
        "compat.LoadProducer",
        *(f"{key}={value}" for key, value in arguments.items()),
        profile=CLIENT,
        jvm=(*PRODUCER_JVM, f"-Duser.home={home}"),
    )
    with Program(command, home / "producer.log") as producer:
        producer.wait_for("MEASURING", START_ALLOWANCE_S + warmup_s)
        before = _cpu_spent(broker_pid, producer.pid)
        line = producer.wait_for('{"messagesPerSecond"', START_ALLOWANCE_S + measured_s)
        spent = _cpu_spent(broker_pid, producer.pid).since(before)
    said = json.loads(line)
    if said["failed"] or said["notOk"]:
        raise LoadFailed(
            f"{said['failed']} sends failed, {said['notOk']} were not SEND_OK: {said['firstError']}"
        )
    return Figures(
        messages_per_s=said["messagesPerSecond"],
        p50_ms=said["p50Ms"],
        p99_ms=said["p99Ms"],
        mean_ms=said["meanMs"],
        max_ms=said["maxMs"],
        messages=said["messages"],
        seconds=said["seconds"],
        broker_cpu_us_per_message=spent.broker_s / said["messages"] * 1e6,
        producer_cpu_us_per_message=spent.producer_s / said["messages"] * 1e6,
        broker_anonymous_mib=_anonymous_mib(broker_pid),
        other_cores=(spent.machine_s - spent.broker_s - spent.producer_s) / said["seconds"],
    )


@dataclass(frozen=True)
class _CpuSpent:
    """CPU time so far, in seconds."""

    machine_s: float
    broker_s: float
    producer_s: float

    def since(self, before: _CpuSpent) -> _CpuSpent:
        return _CpuSpent(
            self.machine_s - before.machine_s,
            self.broker_s - before.broker_s,
            self.producer_s - before.producer_s,
        )


def _cpu_spent(broker_pid: int, producer_pid: int) -> _CpuSpent:
    machine = psutil.cpu_times()
    busy_s = sum(machine) - machine.idle - machine.iowait
    return _CpuSpent(busy_s, _cpu_s(broker_pid), _cpu_s(producer_pid))


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _anonymous_mib(pid: int) -> float:
    """RssAnon: what the process holds of memory that is not the page cache's."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0
