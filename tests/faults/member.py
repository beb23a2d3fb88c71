"""Consumer process that tests pause and kill.

    python -m tests.faults.member NAMESERVER GROUP TOPIC HISTORY [NAME [THREADS]]

Each message is written to the history file before the listener returns. With a name, the consumer is ordered,
and the history has the begin and the end of each listener call; a message with the body STOP stops the
process (SIGSTOP) during its call. THREADS is the number of listener threads. The process exits at the end of
its standard input.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cluster.client import MessageExt, PushConfig, PushConsumer
from cluster.client.consumer.listener import Listener
from tests.checkers import Recorder
from tests.eventually import TIME_SCALE

LEASE_MS = int(1500 * TIME_SCALE)
REQUEST_TIMEOUT_MS = int(1000 * TIME_SCALE)
STOP = "stop"


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


def listener_of(recorder: Recorder, process: str, group: str) -> Listener:
    def listen(messages: list[MessageExt]) -> None:
        for each in messages:
            recorder.read(process, group, each.topic, each.queue_id, each.queue_offset, each.body.decode())

    return listen


def ordered_listener_of(
    recorder: Recorder, process: str, group: str, during: Callable[[MessageExt], None] = lambda _message: None
) -> Listener:
    """Return a listener that calls `during` between the begin and the end of the call in the history."""

    def listen(messages: list[MessageExt]) -> None:
        for each in messages:
            recorder.consume("invoke", process, group, each)
            during(each)
            recorder.read(process, group, each.topic, each.queue_id, each.queue_offset, each.body.decode())
            recorder.consume("ok", process, group, each)

    return listen


def stop_on_request(message: MessageExt) -> None:
    if message.body.decode() == STOP:
        # To this thread, so that it does not return before the process is stopped.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def main() -> None:
    """Consume until the end of standard input."""
    nameserver, group, topic, history, *ordered = sys.argv[1:]
    recorder, config = Recorder(Path(history)), config_of(group)
    listener = listener_of(recorder, "member", group)
    if ordered:
        name, *threads = ordered
        listener = ordered_listener_of(recorder, name, group, stop_on_request)
        config = replace(config, ordered=True, consume_threads=int(*threads or [config.consume_threads]))
    with PushConsumer(nameserver, listener=listener, config=config) as consumer:
        consumer.subscribe(topic)
        sys.stdout.write("READY\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
