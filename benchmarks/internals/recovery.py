"""recovery: recover a log without a checkpoint, and verify it, with a warm page cache.

One part only scans the log, one also rebuilds the consume queues and the index, one verifies log, queues and
index.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from benchmarks.internals.options import InternalsOptions, log_pool
from benchmarks.processes import stop_broker
from cluster.lab.bench.options import BenchFailed
from cluster.lab.bench.result import BenchResult, Run
from cluster.lab.bench.sending import filled_cluster
from store.common.clock import SystemClock
from store.message_store import MessageStore
from store.ownership.identity import read_name
from store.recovery.opening import CHECKPOINT, CONSUME_QUEUE, INDEX, open_parts
from store.recovery.summary import summary_path
from store.recovery.tail import find_tail
from store.store_settings import StoreSettings
from store.tools.verify import verify

TOPIC = "bench"


def run(options: InternalsOptions) -> list[BenchResult]:
    """Measure with a log of about `options.log_bytes` bytes."""
    pool, rounds = log_pool(options.log_bytes, options.body_bytes)
    with filled_cluster(options, "recovery: writing", pool, rounds) as (cluster, messages):
        stop_broker(cluster)
        settings = StoreSettings.model_validate({"flush": "async"})
        scans, rebuilds, verifications = [], [], []
        scan(cluster.store, settings, messages)  # warms the cache
        for _ in options.numbered_runs("recovery"):
            scans.append(scan(cluster.store, settings, messages))
            rebuilds.append(rebuild(cluster.store, settings, messages, pool.last_key()))
            verifications.append(verified(cluster.store, messages))
    parameters = {"log_bytes": scans[0].bytes, "body_bytes": options.body_bytes, "cache": "warm", "crc": True}
    return [
        BenchResult("recovery-scan", scans, parameters),
        BenchResult("recovery-rebuild", rebuilds, {**parameters, "index": True}),
        BenchResult("recovery-verify", verifications, {**parameters, "index": True}),
    ]


def scan(store: Path, settings: StoreSettings, messages: int) -> Run:
    """Scan the whole log with CRC checks to find its end, without changing the store.

    Raises BenchFailed if records are damaged or missing.
    """
    parts = open_parts(store, settings, SystemClock())
    try:
        started = time.perf_counter()
        tail = find_tail(parts.log, 0, check_crc=True, is_ours=True)
        seconds = time.perf_counter() - started
    finally:
        parts.close()
    if tail.records < messages or tail.damaged_bytes:
        raise BenchFailed(
            f"the scan found {tail.records:,} of at least {messages:,} records "
            f"and {tail.damaged_bytes:,} damaged bytes"
        )
    return Run(seconds, tail.records, tail.position)


def rebuild(store: Path, settings: StoreSettings, messages: int, last_key: str) -> Run:
    """Open the store as after a crash that left only the log.

    Raises BenchFailed if a message is not in its queue or `last_key` is not in the index afterwards.
    """
    for directory in (CONSUME_QUEUE, INDEX):
        shutil.rmtree(store / directory)
    for note in (store / CHECKPOINT, summary_path(store)):
        note.unlink(missing_ok=True)
    (store / "abort").touch()
    name = read_name(store)
    assert name is not None
    started = time.perf_counter()
    opened = MessageStore.open(store, settings, name.identity, SystemClock())
    seconds = time.perf_counter() - started
    try:
        log_bytes = opened.positions.written
        there = sum(opened.max_offset(topic, queue) for topic, queue in opened.queues() if topic == TOPIC)
        if there != messages or not opened.query_by_key(TOPIC, last_key):
            raise BenchFailed(
                f"the rebuilt queues have {there:,} of {messages:,} messages, "
                f"or the index has no key {last_key}"
            )
    finally:
        opened.close()
    return Run(seconds, messages, log_bytes)


def verified(store: Path, messages: int) -> Run:
    """Verify the store and measure it.

    Raises BenchFailed if the store is damaged or has fewer than `messages` records.
    """
    started = time.perf_counter()
    report = verify(store)
    seconds = time.perf_counter() - started
    records = report.counts["records"]
    if not report.is_valid or records < messages:
        raise BenchFailed(
            f"verify reported {len(report.findings)} findings and {records:,} of {messages:,} records"
        )
    return Run(seconds, records, report.counts["logBytes"])
