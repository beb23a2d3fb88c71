"""Consumer process that tests pause and kill.

    python -m tests.faults.member NAMESERVER GROUP TOPIC HISTORY [MODEL [NAME [THREADS]]]

Each message is written to the history file before the listener returns. MODEL is `concurrent` (the default),
`ordered` or `broadcasting`. The history of an ordered consumer has the begin and the end of each listener
call; after a line on its standard input, the process stops itself (SIGSTOP) during its next call. The history
of a broadcasting consumer has NAME as the group, because each member gets all messages. THREADS is the number
of listener threads. The process exits at the end of its standard input.
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
        for each in map(numbered, messages):
            record_read(recorder, process, group, each)

    return listen


def ordered_listener_of(
    recorder: Recorder, process: str, group: str, during: Callable[[MessageExt], None] = lambda _message: None
) -> Listener:
    """Return a listener that calls `during` between the begin and the end of the call in the history."""

    def listen(messages: list[MessageExt]) -> None:
        for each in map(numbered, messages):
            recorder.consume("invoke", process, group, each)
            during(each)
            record_read(recorder, process, group, each)
            recorder.consume("ok", process, group, each)

    return listen


def record_read(recorder: Recorder, process: str, group: str, message: MessageExt) -> None:
    at = (message.topic, message.queue_id, message.queue_offset)
    recorder.read(process, group, *at, message.body.decode(), message.store_timestamp)


def numbered(message: MessageExt) -> MessageExt:
    """Return the message with a queue id that is unique among brokers: a history has numbered queues."""
    return replace(message, queue_id=queue_number(message.broker_name, message.queue_id))


def queue_number(broker: str, queue_id: int) -> int:
    """Return one number for a queue of broker-a, broker-b, …"""
    return 1000 * (ord(broker[-1]) - ord("a")) + queue_id


def main() -> None:
    """Consume until the end of standard input."""
    nameserver, group, topic, history, *more = sys.argv[1:]
    model, name, threads = [*more, *["concurrent", "member", "4"][len(more) :]]
    recorder, stop = Recorder(Path(history)), threading.Event()

    def stop_on_request(_message: MessageExt) -> None:
        if stop.is_set():
            stop.clear()
            recorder.kill(name)
            # To this thread, so that it does not return before the process is stopped.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    config = replace(config_of(group), consume_threads=int(threads))
    if model == "ordered":
        config = replace(config, ordered=True)
        listener = ordered_listener_of(recorder, name, group, stop_on_request)
    elif model == "broadcasting":
        directory = str(Path(history).parent / "offsets")
        config = replace(
            config,
            message_model="broadcasting",
            instance_name=name,
            local_offset_dir=directory,
            consume_from="earliest",
        )
        listener = listener_of(recorder, name, name)
    else:
        listener = listener_of(recorder, name, group)
    with PushConsumer(nameserver, listener=listener, config=config) as consumer:
        consumer.subscribe(topic)
        sys.stdout.write("READY\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            stop.set()


if __name__ == "__main__":
    main()
