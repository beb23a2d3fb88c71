"""machine: the limits of the machine, as a reference for the other benchmarks.

Measures memory copies, first writes to fresh pages, small appends with fdatasync, loopback TCP, and the
speed of the Python interpreter (its `messages` are iterations of a plain loop).
"""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cluster.lab.bench.options import BenchOptions
from cluster.lab.bench.result import BenchResult, Run, percentile

MIB = 1024 * 1024
SMALL_APPEND_BYTES = 4096
LOOP_ITERATIONS = 100_000


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure each limit for a twentieth of `options.seconds` per run."""
    each_s = max(options.seconds / 20, 0.05)
    limits: list[tuple[str, Callable[[float, BenchOptions], Run]]] = [
        ("memory-copy", _memory_copy),
        ("first-touch", _first_touch),
        ("append-fdatasync", _append_fdatasync),
        ("loopback-tcp", _loopback_tcp),
        ("interpreter", _interpreter),
    ]
    results = []
    for name, measure in limits:
        options.progress(f"machine: {name}")
        runs = [measure(each_s, options) for _ in range(options.runs)]
        results.append(BenchResult(name, runs, {"cpus": os.cpu_count()}))
    return results


def _repeat(seconds: float, step: Callable[[], int]) -> Run:
    """Call `step`, which returns the bytes that it moved, for `seconds`, at least once."""
    moved = 0
    started = time.perf_counter()
    while (elapsed_s := time.perf_counter() - started) < seconds or not moved:
        moved += step()
    return Run(elapsed_s, bytes=moved)


def _memory_copy(seconds: float, _: BenchOptions) -> Run:
    source, target = bytearray(64 * MIB), bytearray(64 * MIB)

    def copy() -> int:
        target[:] = source
        return len(source)

    return _repeat(seconds, copy)


def _first_touch(seconds: float, _: BenchOptions) -> Run:
    source = bytes(32 * MIB)

    def touch() -> int:
        with mmap.mmap(-1, len(source)) as fresh:
            fresh[:] = source
        return len(source)

    return _repeat(seconds, touch)


def _append_fdatasync(seconds: float, options: BenchOptions) -> Run:
    page = os.urandom(SMALL_APPEND_BYTES)
    taken_ms: list[float] = []
    with tempfile.NamedTemporaryFile(dir=options.directory) as file:
        os.posix_fallocate(file.fileno(), 0, 64 * MIB)
        file.flush()
        os.fdatasync(file.fileno())

        def append() -> int:
            started = time.perf_counter()
            os.pwrite(file.fileno(), page, len(taken_ms) * len(page) % (64 * MIB))
            os.fdatasync(file.fileno())
            taken_ms.append((time.perf_counter() - started) * 1e3)
            return len(page)

        whole = _repeat(seconds, append)
    taken_ms.sort()
    return Run(
        whole.seconds,
        messages=len(taken_ms),
        p50_ms=percentile(taken_ms, 0.5),
        p99_ms=percentile(taken_ms, 0.99),
    )


def _loopback_tcp(seconds: float, _: BenchOptions) -> Run:
    listener = socket.create_server(("127.0.0.1", 0))

    def discard_input() -> None:
        peer, _address = listener.accept()
        into = bytearray(MIB)
        while peer.recv_into(into):
            pass
        peer.close()

    reader = threading.Thread(target=discard_input, name="loopback-reader")
    reader.start()
    block = bytes(64 * 1024)
    with listener, socket.create_connection(listener.getsockname()) as sender:

        def send() -> int:
            sender.sendall(block)
            return len(block)

        whole = _repeat(seconds, send)
    reader.join()
    return whole


def _interpreter(seconds: float, _: BenchOptions) -> Run:
    rounds = 0
    started = time.perf_counter()
    while (elapsed_s := time.perf_counter() - started) < seconds or not rounds:
        total = 0
        for number in range(LOOP_ITERATIONS):
            total += number
        rounds += 1
    return Run(elapsed_s, messages=rounds * LOOP_ITERATIONS)


def free_bytes(directory: Path) -> int:
    """Return the free bytes of the file system of `directory`."""
    return shutil.disk_usage(directory).free
