"""hostile: the longest stall of the broker's event loop while a client sends costly requests.

A probe sends ten small messages per second over a connection of its own. Beside it, another process sends
each input of `hostile_inputs` in turn. The loop's own lag is measured every 10 ms (`LoopLag`), so it shows
stalls between two probes.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from actors.host.loop_lag import longest_us
from actors.wire.codes import RequestCode
from actors.wire.hot_headers import SendMessageHeader
from benchmarks.internals.hostile_inputs import INPUTS
from benchmarks.internals.options import InternalsOptions, bench_process
from benchmarks.processes import anonymous_bytes
from benchmarks.raw_peer import RawPeer
from cluster.client import Admin
from cluster.lab.bench.broker import BenchCluster, bench_cluster
from cluster.lab.bench.options import BenchFailed
from cluster.lab.bench.result import BenchResult, Run, percentile
from cluster.lab.bench.sending import make_topic

BROKER = "broker-a"
TOPIC = "bench"
PROBE_S = 0.1
PREPARED_TIMEOUT_S = 120.0
AFTERWARDS_S = 0.5
"""Time for which the probe still runs after the last response: some work is done later."""
MIB = 1024 * 1024
STALL_MAX_MS = 20
_REGISTRATION = "nameserver and broker share this process: a registration of all topics is decoded at once"
_ENTRIES = "a body with 16,000 queues is decoded at once"
REASONS = {
    "batch-of-tiny": "100,000 messages are one append: all of them are stored, or none",
    "all-topics": "the response with all topics is encoded at once",
    "topic-list": _REGISTRATION,
    "new-topics": _REGISTRATION,
    "delete-topic": _REGISTRATION,
    "lock-queues": _ENTRIES,
    "unlock-queues": _ENTRIES,
    "commit-offsets": _ENTRIES,
    "reset-offsets": "the offsets of all queues of a topic change at once",
}
"""Why an input may stall the loop for more than `STALL_MAX_MS`."""


def run(options: InternalsOptions) -> list[BenchResult]:
    """Measure the broker without an input for `options.seconds`, then with each input, each once."""
    results = []
    with bench_cluster(options) as cluster, Admin(cluster.nameservers) as admin:
        make_topic(cluster.nameservers, TOPIC, 1)
        address = admin.route(TOPIC).addresses[BROKER][0]
        process = bench_process("benchmarks.internals.hostile_inputs", address, options.queues)
        try:
            with RawPeer(address) as probe:
                quiet = _Stalls(cluster, admin, probe)
                results.append(quiet.result("hostile-quiet", _quiet(quiet, options.seconds)))
                for name in INPUTS:
                    options.progress(f"hostile: {name}")
                    stalls = _Stalls(cluster, admin, probe, process)
                    results.append(stalls.result(f"hostile-{name}", stalls.attack(name)))
        finally:
            process.kill()
            process.communicate()
    return results


class _Stalls:
    """Probes a broker and measures the lag of its loop, during one input."""

    def __init__(
        self,
        cluster: BenchCluster,
        admin: Admin,
        probe: RawPeer,
        process: subprocess.Popen[str] | None = None,
    ) -> None:
        self._cluster = cluster
        self._admin = admin
        self._probe = probe
        self._process = process
        self._taken_ms: list[float] = []

    def attack(self, name: str) -> Mapping[str, Any]:
        """Have the other process send the input `name`, and probe meanwhile. Returns its outcome."""
        self._write(name)
        if self._read(PREPARED_TIMEOUT_S) != "GO":
            raise BenchFailed(f"input {name} was not prepared: see its output above")
        time.sleep(AFTERWARDS_S)  # the work that preparing has caused
        self.begin()
        self._write("")
        while (line := self._read(0)) is None:
            self.probe()
        for _ in range(round(AFTERWARDS_S / PROBE_S)):
            self.probe()
        outcome: Mapping[str, Any] = json.loads(line)
        return outcome

    def begin(self) -> None:
        """Start to measure."""
        self._before_bytes = anonymous_bytes(self._cluster.process.pid)
        self._before = self._lag_buckets()

    def probe(self) -> None:
        """Send a message and note how long its response took, then wait for the rest of `PROBE_S`."""
        started = time.perf_counter()
        header = SendMessageHeader("probe", TOPIC, 0, "")
        self._probe.call_checked(RequestCode.SEND_MESSAGE_V2, header.to_ext(), b"probe")
        self._taken_ms.append((time.perf_counter() - started) * 1e3)
        time.sleep(max(started + PROBE_S - time.perf_counter(), 0))

    def result(self, name: str, outcome: Mapping[str, Any]) -> BenchResult:
        """Return the result of one input, of which the broker has answered all requests."""
        lag_us = [after - was for after, was in zip(self._lag_buckets(), self._before, strict=True)]
        grown_bytes = anonymous_bytes(self._cluster.process.pid) - self._before_bytes
        taken_ms = sorted(self._taken_ms)
        lag_ms = longest_us(lag_us) / 1e3
        parameters: dict[str, Any] = {
            "worst_stall_ms": round(max(taken_ms[-1], lag_ms), 1),
            "probe_longest_ms": round(taken_ms[-1], 1),
            "lag_longest_ms": round(lag_ms, 1),
            "grown_mib": round(grown_bytes / MIB, 1),
            **{key: outcome[key] for key in ("answer", "remark") if outcome.get(key)},
        }
        reason = REASONS.get(name.removeprefix("hostile-"))
        if reason is not None and parameters["worst_stall_ms"] > STALL_MAX_MS:
            parameters["reason"] = reason
        run = Run(outcome["seconds"], outcome["requests"], outcome["bytes"], percentile(taken_ms, 0.5))
        return BenchResult(name, [run], parameters)

    def _lag_buckets(self) -> list[int]:
        return [int(count) for count in self._admin.broker_runtime(BROKER)["loopLagBuckets"].split()]

    def _write(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _read(self, wait_s: float) -> str | None:
        """Return the next line of the other process, or None if it wrote nothing within `wait_s`."""
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(wait_s):
                return None
        line = self._process.stdout.readline()
        if not line:
            raise BenchFailed("the process that sends the inputs has failed: see its output above")
        return line.strip()


def _quiet(stalls: _Stalls, seconds: float) -> Mapping[str, Any]:
    stalls.begin()
    started = time.perf_counter()
    requests = 0
    while not requests or time.perf_counter() - started < seconds:
        stalls.probe()
        requests += 1
    return {"seconds": time.perf_counter() - started, "requests": requests, "bytes": requests}
