"""Consumer process that tests pause and kill.

    python -m tests.faults.member NAMESERVER GROUP TOPIC HISTORY

Each message is written to the history file before the listener returns. The process exits at the end of its
standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cluster.client import MessageExt, PushConfig, PushConsumer
from tests.checkers import Recorder
from tests.eventually import TIME_SCALE

LEASE_MS = int(1500 * TIME_SCALE)
REQUEST_TIMEOUT_MS = int(1000 * TIME_SCALE)


def config_of(group: str) -> PushConfig:
    return PushConfig(
        group=group,
        lease_ms=LEASE_MS,
        sync_interval_ms=200,
        commit_interval_ms=100,
        consume_threads=4,
        max_cached_messages=8,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
    )


def listener_of(recorder: Recorder, process: str, group: str) -> object:
    def listen(messages: list[MessageExt]) -> None:
        for each in messages:
            recorder.read(process, group, each.topic, each.queue_id, each.queue_offset, each.body.decode())

    return listen


def main() -> None:
    """Consume until the end of standard input."""
    nameserver, group, topic, history = sys.argv[1:]
    listener = listener_of(Recorder(Path(history)), "member", group)
    with PushConsumer(nameserver, listener=listener, config=config_of(group)) as consumer:  # type: ignore[arg-type]
        consumer.subscribe(topic)
        sys.stdout.write("READY\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
