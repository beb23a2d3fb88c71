"""push: consume a backlog with a push consumer whose listener reads every field of up to 32 messages."""

from __future__ import annotations

import threading
import time

from cluster.client import MessageExt, PushConfig, PushConsumer
from cluster.lab.bench.options import BenchFailed, BenchOptions
from cluster.lab.bench.result import BenchResult, Run
from cluster.lab.bench.sending import QUEUES, backlog_pool, filled_cluster

BATCH = 32
LISTENERS = 4
STALL_TIMEOUT_S = 30.0


class Reader:
    """Listener that reads every field of every message and counts the messages."""

    def __init__(self) -> None:
        self.count = 0
        self.characters = 0
        self.first = 0
        """Number of messages in the first call, which returned at `began_s`."""
        self.began_s = 0.0
        self._lock = threading.Lock()

    def __call__(self, messages: list[MessageExt]) -> None:
        """Consume `messages`."""
        characters = 0
        for message in messages:
            characters += len(message.body) + len(message.tags or "") + len(message.keys or "")
            characters += len(message.msg_id) + len(message.properties) + message.queue_id
            characters += (message.queue_offset ^ message.born_timestamp ^ message.store_timestamp) & 1
        with self._lock:
            if not self.count:
                self.first, self.began_s = len(messages), time.perf_counter()
            self.count += len(messages)
            self.characters += characters


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure with one backlog of about `options.messages` messages; each run uses a new consumer group."""
    pool, rounds = backlog_pool(options)
    with filled_cluster(options, "push: sending", pool, rounds) as (cluster, messages):
        _drain(cluster.nameservers, "warm", messages, options.warm_up_s)
        runs = []
        for number in options.numbered_runs("push"):
            count, seconds = _drain(cluster.nameservers, f"run-{number}", messages, options.seconds)
            runs.append(Run(seconds, count, count * pool.body_bytes))
    parameters = {
        "backlog": messages,
        "body_bytes": options.body_bytes,
        "queues": QUEUES,
        "consume_batch": BATCH,
        "consume_threads": LISTENERS,
    }
    return [BenchResult("push", runs, parameters)]


def _drain(nameservers: str, group: str, messages: int, seconds: float) -> tuple[int, float]:
    """Consume the backlog to its end or for `seconds`, and return the number of messages and the duration.

    Both exclude the first call of the listener, and thus the start of the consumer.
    """
    reader = Reader()
    config = PushConfig(consume_batch=BATCH, consume_threads=LISTENERS)
    with PushConsumer(nameservers, group, reader, config=config) as consumer:
        consumer.subscribe("bench")
        _wait_for(reader, min(BATCH + 1, messages))
        while reader.count < messages and time.perf_counter() - reader.began_s < seconds:
            _wait_for(reader, reader.count + 1)
        return reader.count - reader.first, time.perf_counter() - reader.began_s


def _wait_for(reader: Reader, count: int) -> None:
    deadline_s = time.monotonic() + STALL_TIMEOUT_S
    while reader.count < count:
        if time.monotonic() > deadline_s:
            raise BenchFailed(
                f"consumed {reader.count:,} messages, then no message for {STALL_TIMEOUT_S:g} s"
            )
        time.sleep(0.005)
