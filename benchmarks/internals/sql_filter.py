"""Benchmark sql-filter: read a queue of a message store with a SQL92 filter, as a broker does for a pull.

The store is in the benchmark's process. The results count all examined messages and the bytes of their
bodies, whether they match or not.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from cluster.lab.bench.broker import bench_root
from cluster.lab.bench.options import BenchFailed, BenchOptions
from cluster.lab.bench.result import BenchResult, Run
from store.common.clock import SystemClock
from store.message.hosts import Host
from store.message.properties import encode_properties
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.reading.sql_filter import SqlFilter
from store.store_settings import StoreSettings

EXPRESSIONS = {
    "sql-filter": "a > 10 AND region IN ('x','y')",
    "sql-filter-none": "a > 100 AND region IN ('x','y')",
}
TOPIC = "bench"
MESSAGES_MAX = 100_000
PULL_MESSAGES, PULL_BYTES = 32, 256 * 1024  # RocketMQ's limits of one pull


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure two filters: 30 % of the messages match the first one, and no message matches the second."""
    messages = min(options.messages, MESSAGES_MAX)
    results: list[BenchResult] = []
    with bench_root(options) as root, closing(_filled(root, options.body_bytes, messages)) as store:
        for name, expression in EXPRESSIONS.items():
            wanted = SqlFilter(expression)
            seconds = options.seconds / len(EXPRESSIONS)
            _measure(store, wanted, messages, options.warm_up_s)
            runs: list[Run] = []
            for _ in options.numbered_runs(name):
                elapsed_s, examined, matched = _measure(store, wanted, messages, seconds)
                runs.append(Run(elapsed_s, examined, examined * options.body_bytes))
            parameters = {"expression": expression, "matching": matched, "backlog": messages}
            results.append(BenchResult(name, runs, {**parameters, "body_bytes": options.body_bytes}))
    return results


def _filled(root: Path, body_bytes: int, messages: int) -> MessageStore:
    settings = StoreSettings(flush="async")
    identity = StoreIdentity("DefaultCluster", "broker-a")
    store = MessageStore.open(root, settings, identity, SystemClock(), store_host=Host("127.0.0.1", 10911))
    for number in range(messages):
        properties = {"UNIQ_KEY": f"{number:032X}", "a": str(number % 20), "region": "xyz"[number % 3]}
        store.append(RecordDraft(TOPIC, 0, bytes(body_bytes), encode_properties(properties)))
    store.flush_now()
    store.dispatch_now()
    store.advance()
    return store


def _measure(store: MessageStore, wanted: SqlFilter, messages: int, seconds: float) -> tuple[float, int, int]:
    """Read the queue from start to end, repeatedly until `seconds` have elapsed.

    Returns the elapsed seconds, the number of messages examined in all passes, and the number of matching
    messages in one pass.
    """
    passes = 0
    started = time.perf_counter()
    while not passes or time.perf_counter() - started < seconds:
        offset = matched = 0
        while offset < messages:
            found = store.get_message(TOPIC, 0, offset, PULL_MESSAGES, PULL_BYTES, wanted)
            if found.next_begin_offset <= offset:
                raise BenchFailed(
                    f"reading queue 0 of topic {TOPIC!r} at offset {offset:,} returned {found.status.name}"
                )
            offset = found.next_begin_offset
            matched += found.message_count
        passes += 1
    return time.perf_counter() - started, passes * messages, matched
