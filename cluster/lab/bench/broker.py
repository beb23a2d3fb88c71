"""Broker of a benchmark: a separate process on free ports, with a store that is deleted at the end."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.client.tls import TLS_CA_ENV
from cluster.lab.bench.options import BenchFailed, BenchOptions

START_TIMEOUT_S = 60.0
NO_CLEANUP = ("disk_max_used_percent=95", "disk_force_clean_percent=99", "disk_refuse_writes_percent=99")
"""Store settings that keep the broker from deleting files during a benchmark; a full disk refuses sends."""
SOURCE_ROOT = Path(__file__).parents[3]


@dataclass
class BenchCluster:
    """A nameserver and a broker in one process."""

    nameservers: str
    store: Path
    process: subprocess.Popen[str]
    start_s: float
    """Time from the start of the process to its READY line."""


@contextmanager
def bench_cluster(options: BenchOptions, flush: str | None = None) -> Iterator[BenchCluster]:
    """Yield a broker with an empty store and flush mode `flush` (default: that of the options).

    Clients that are created meanwhile connect with the TLS of the options. Raises BenchFailed if the broker
    does not start.
    """
    with (
        bench_root(options) as root,
        running(root, flush or options.flush, tls=options.tls) as cluster,
        _client_tls(options.tls),
    ):
        yield cluster


@contextmanager
def _client_tls(folder: Path | None) -> Iterator[None]:
    if folder is not None:
        os.environ[TLS_CA_ENV] = str(folder / "ca.pem")
    try:
        yield
    finally:
        if folder is not None:
            del os.environ[TLS_CA_ENV]


@contextmanager
def bench_root(options: BenchOptions) -> Iterator[Path]:
    """Yield a temporary directory for the stores of one benchmark; it is deleted at the end."""
    root = Path(tempfile.mkdtemp(prefix="raymq-bench-", dir=options.directory))
    try:
        yield root
    finally:
        shutil.rmtree(root)


@contextmanager
def running(
    root: Path, flush: str, settings: Sequence[str] = (), tls: Path | None = None
) -> Iterator[BenchCluster]:
    """Yield a broker on the store below `root`, which is created if it is missing.

    `settings` are additional store settings, each `key=value`. With `tls`, the folder of `BenchOptions.tls`,
    it accepts only TLS. A broker that still runs at the end is killed. Raises BenchFailed if the broker does
    not start.
    """
    root.mkdir(exist_ok=True)
    log_file = root / "broker.log"
    command = [
        sys.executable, "-m", "cluster.standalone", "--store-root", str(root), "--nameserver-port", "0",
        "--broker-port", "0", "--flush", flush, *(f"--store={each}" for each in (*NO_CLEANUP, *settings)),
        *(f"--tls={each}" for each in _tls_settings(tls)),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
    started = time.perf_counter()
    with log_file.open("w") as log:
        # A separate session: Ctrl-C reaches only the benchmark, which then stops its broker.
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        nameservers = _wait_until_ready(process, log_file)
        yield BenchCluster(nameservers, root / "broker-a-0", process, time.perf_counter() - started)
    finally:
        _end(process)


def _tls_settings(folder: Path | None) -> list[str]:
    if folder is None:
        return []
    files = {"tls_certificate": "server.crt", "tls_key": "server.key", "tls_ca": "ca.pem"}
    return ["tls=enforced", *(f"{name}={folder / file}" for name, file in files.items())]


def _wait_until_ready(process: subprocess.Popen[str], log_file: Path) -> str:
    assert process.stdout is not None
    deadline_s = time.monotonic() + START_TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(max(deadline_s - time.monotonic(), 0)):
            line = process.stdout.readline()
            if line.startswith("READY "):
                return line.split()[1]
            if not line:
                break
    tail = "\n".join(log_file.read_text().splitlines()[-10:])
    raise BenchFailed(f"the broker was not ready within {START_TIMEOUT_S:g} s; the end of its log:\n{tail}")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
