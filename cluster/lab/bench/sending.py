"""Shared functions of the benchmarks that send: create topics, send backlogs, verify the arrival."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.client import Admin, Producer
from cluster.lab.bench.broker import BenchCluster, bench_cluster
from cluster.lab.bench.messages import MessagePool
from cluster.lab.bench.options import BenchFailed, BenchOptions

ARRIVAL_TIMEOUT_S = 60.0
ARRIVAL_POLL_S = 0.02
QUEUES = 8
POOL_ROWS = 500_000


def make_topic(nameservers: str, topic: str, queues: int = QUEUES) -> None:
    """Create `topic` with `queues` queues."""
    with Admin(nameservers) as admin:
        admin.create_topic(topic, queues=queues)


def send_rounds(
    producer: Producer,
    topic: str,
    pool: MessagePool,
    first_round: int,
    seconds: float,
    *,
    is_keyed: bool = True,
) -> int:
    """Send the pool repeatedly for `seconds` and return the number of rounds (at least 1).

    Each round has new keys, numbered from `first_round`. With `is_keyed` the hash of the key selects the
    queue of each row; otherwise consecutive rows go to the same queue.
    """
    sharding_key = "keys" if is_keyed else None
    rounds = 0
    deadline_s = time.perf_counter() + seconds
    while not rounds or time.perf_counter() < deadline_s:
        producer.send_table(
            topic, pool.stamp(first_round + rounds), keys="keys", tags="tags", sharding_key=sharding_key
        )
        rounds += 1
    return rounds


def fill(nameservers: str, topic: str, pool: MessagePool, rounds: int) -> int:
    """Create `topic`, send the pool `rounds` times, await the dispatch; return the number of messages."""
    make_topic(nameservers, topic)
    with Producer(nameservers) as producer:
        for number in range(rounds):
            producer.send_table(topic, pool.stamp(number), keys="keys", tags="tags", sharding_key="keys")
    await_arrival(nameservers, topic, rounds * pool.rows, pool.last_key())
    return rounds * pool.rows


@contextmanager
def filled_cluster(
    options: BenchOptions, step: str, pool: MessagePool, rounds: int
) -> Iterator[tuple[BenchCluster, int]]:
    """Yield a broker whose topic `bench` holds the pool `rounds` times, and the number of messages.

    Raises BenchFailed if the broker does not start or messages are missing.
    """
    with bench_cluster(options, "async") as cluster:
        options.progress(f"{step} {rounds * pool.rows:,} messages")
        yield cluster, fill(cluster.nameservers, "bench", pool, rounds)


def backlog_pool(options: BenchOptions) -> tuple[MessagePool, int]:
    """Return a pool and how many times to send it for a backlog of about `options.messages` messages."""
    pool = MessagePool(min(POOL_ROWS, options.messages), options.body_bytes)
    return pool, max(options.messages // pool.rows, 1)


def readable(admin: Admin, topic: str) -> list[int]:
    """Return the number of readable messages of each queue of `topic`, with one request per broker."""
    return [queue.max_offset - queue.min_offset for body in admin.splits(topic) for queue in body.queues]


def await_arrival(nameservers: str, topic: str, messages: int, last_key: str | None) -> None:
    """Wait until all messages are in the consume queues and the last one is in the index.

    An acknowledgement means that a message is stored; consumers and queries find it after the dispatch.
    Raises BenchFailed after `ARRIVAL_TIMEOUT_S`, or if the topic holds more than `messages`.
    """
    deadline_s = time.monotonic() + ARRIVAL_TIMEOUT_S
    with Admin(nameservers) as admin:
        # The key first: reading the offsets of 20,000 queues costs the broker more than many sends.
        while last_key is not None and not admin.messages_by_key(topic, last_key):
            _wait(deadline_s, f"key {last_key} is not in the index of {topic}")
        while (there := sum(readable(admin, topic))) != messages:
            if there > messages:
                raise BenchFailed(
                    f"topic {topic} holds {there:,} messages, but only {messages:,} were acknowledged"
                )
            _wait(deadline_s, f"topic {topic} holds {there:,} of {messages:,} acknowledged messages")


def _wait(deadline_s: float, problem: str) -> None:
    if time.monotonic() > deadline_s:
        raise BenchFailed(f"after {ARRIVAL_TIMEOUT_S:g} s {problem}")
    time.sleep(ARRIVAL_POLL_S)
