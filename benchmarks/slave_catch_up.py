"""Time in which a new slave copies a master's log that is not in memory, and what this costs the senders.

    uv run python -m benchmarks.slave_catch_up [--bytes 2000000000] [--body-bytes 1024] [--seconds 10]

A master with `replication: async` is filled, stopped, its log evicted from the page cache, and started again.
Then a new slave copies the log:

    quiet   nothing else happens: bytes per second until the slave has dispatched the last record
    loaded  another new slave does so while one peer sends as much as it can: the rate of the sends meanwhile,
            divided by their rate before

Master, slave and sender share the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.internals.options import RECORD_OVERHEAD_BYTES
from benchmarks.raw_peer import RawPeer
from benchmarks.scraped_sends import BATCH, exchange, frames
from cluster.lab.bench.messages import MessagePool
from cluster.lab.bench.sending import fill, make_topic
from tests.compat.raymq import RayMQ
from tests.compat.replication.slave import Slave, log_bounds
from tests.eventually import eventually

POOL_ROWS = 100_000
WARM_UP_S = 3.0
ASYNC = ("--flush", "async")
FLOORS = {"quiet_mb_per_s": 150.0, "loaded_sends_ratio": 0.7}


class Sender:
    """Sends batches in a thread without pause, and counts the messages."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.messages = 0

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def rate(self, wait: Callable[[], object]) -> float:
        """Return the messages per second that are sent while `wait` runs."""
        before, began_s = self.messages, time.monotonic()
        wait()
        return (self.messages - before) / (time.monotonic() - began_s)

    def _send(self) -> None:
        with RawPeer(self._address) as peer:
            requests = frames(peer)
            while not self._is_over.is_set():
                exchange(peer, requests)
                self.messages += BATCH


def evict(store_root: Path) -> None:
    """Drop the CommitLog of a stopped broker from the page cache."""
    for path in (store_root / "commitlog").iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


@contextmanager
def cold(master: RayMQ) -> Iterator[RayMQ]:
    """Run a stopped master whose log is not in memory."""
    evict(master.store_root)
    with master:
        yield master


def catch_up_s(slave: Slave, end: int) -> float:
    """Return the seconds that a started slave needs until it has dispatched the log up to offset `end`."""
    began_s = time.monotonic()
    eventually(lambda: int(slave.describe()["dispatched"]) >= end, "the end of the log", within_s=600)
    return time.monotonic() - began_s


def measure(root: Path, size_bytes: int, body_bytes: int, seconds: float) -> dict[str, float]:
    """Measure both cases with stores below `root`.

    Args:
        root: directory of the stores.
        size_bytes: size of the master's log.
        body_bytes: size of one message.
        seconds: how long the sends are measured without a slave.
    """
    master = RayMQ(root / "master", options=("--broker", "replication=async"))
    pool = MessagePool(POOL_ROWS, body_bytes)
    rounds = -(-size_bytes // (pool.rows * (body_bytes + RECORD_OVERHEAD_BYTES)))
    with master:
        fill(master.nameserver_address, "bench", pool, rounds)
        make_topic(master.nameserver_address, "topic-0", 4)
    with cold(master), Slave(root / "quiet", master.nameserver_address, ASYNC) as slave:
        end = log_bounds(master.broker_address)[1]
        quiet_s = catch_up_s(slave, end)
    with cold(master), Sender(master.broker_address) as sender:
        time.sleep(WARM_UP_S)
        alone = sender.rate(lambda: time.sleep(seconds))
        with Slave(root / "loaded", master.nameserver_address, ASYNC) as slave:
            meanwhile = sender.rate(lambda: catch_up_s(slave, end))
    return {
        "log_bytes": end,
        "quiet_mb_per_s": end / quiet_s / 1e6,
        "loaded_sends_ratio": meanwhile / alone,
        "alone_sends_per_s": alone,
    }


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bytes", type=int, default=2_000_000_000)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="catch-up-") as root:
        found = measure(Path(root), given.bytes, given.body_bytes, given.seconds)
    print(json.dumps(found))
    for name, floor in FLOORS.items():
        verdict = "reached" if found[name] >= floor else "missed"
        print(f"{name:20}{found[name]:12.2f}   floor {floor:g}   {verdict}")


if __name__ == "__main__":
    main()
